"""The page of each story with most on it, with hostile texts."""

from __future__ import annotations

from serve_eval.report.document import Document, make_page
from serve_eval.report.page.content import PageContent
from tests.report.document.stories import STORIES, make_documents

HOSTILE = "</title><script>window.hit = 1</script><img src=x onerror=hit()>\x1b[31m\u202e\ud800"

__all__ = ["HOSTILE", "STORIES", "make_story_page"]


def make_story_page(story: str) -> PageContent:
    """Return the page of the longest document of a story."""
    return make_page(max(make_documents(story, HOSTILE).values(), key=_measure))


def _measure(document: Document) -> int:
    rows = sum(len(one.statements) for one in document.conclusions)
    return 10 * len(document.blocks) + len(document.statements) + rows
