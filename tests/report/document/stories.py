"""Find the stories with a document, and make their documents and pages."""

from pathlib import Path

from serve_eval.report.document import make_page
from tests.report.document.made import checks, comparisons, many_runs, planning, runs

PACKAGE = Path(__file__).parents[3] / "serve_eval"
WORKFLOWS = PACKAGE / "workflows"
MADE = (runs, many_runs, checks, comparisons, planning)


def find_stories():
    """Return the folder or the file of each story with a document, by its name, in order."""
    makers = [
        *(file for file in WORKFLOWS.rglob("*.py") if "def make_document(" in file.read_text()),
        PACKAGE / "report/run/document.py",
    ]
    places = [
        WORKFLOWS / file.relative_to(WORKFLOWS).parts[0]
        if file.is_relative_to(WORKFLOWS)
        else file.parent
        for file in makers
    ]
    return {place.stem: place for place in sorted(places)}


STORIES = tuple(find_stories())


def make_documents(story, text="some text"):
    """Return the documents of a story by outcome, with `text` wherever others wrote it."""
    name = f"make_{story}_documents"
    return next(vars(made)[name] for made in MADE if name in vars(made))(text)


HOSTILE = "</title><script>window.hit = 1</script><img src=x onerror=hit()>\x1b[31m\u202e\ud800"

__all__ = ["HOSTILE", "STORIES", "make_story_page"]


def make_story_page(story):
    """Return the page of the longest document of a story."""
    return make_page(max(make_documents(story, HOSTILE).values(), key=_measure))


def _measure(document):
    rows = sum(len(one.statements) for one in document.conclusions)
    return 10 * len(document.blocks) + len(document.statements) + rows
