"""Turn a document into the content of its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from serve_eval import __version__
from serve_eval.report.document.document import Depth, Document, Statement, name_state
from serve_eval.report.document.statements import WARNINGS, list_statements, tabulate
from serve_eval.report.page.content import (
    Fact,
    Facts,
    PageContent,
    PictureSection,
    ScriptData,
    Section,
)
from serve_eval.report.summary.axis import UNICODE
from serve_eval.storage.story_files import name_command

FOLDED_WARNINGS = "Warnings"
"""The title of the folded list of all warnings; their number follows."""


def make_page(document: Document) -> PageContent:
    """Return the page of a document: the verdict, the picture that answers, tables, the rest."""
    alone = document.only
    words = document.counted if document.conclusions else ""
    if alone is not None:
        words = "  ".join(filter(None, (alone.name, _drop_marks(alone.drawn) or alone.figures)))
    subject = document.subject or document.endpoint
    shown = [row for row in list_statements(document) if row.depth is Depth.FIRST]
    return PageContent(
        notice=document.banner,
        kind=name_command(document.story),
        title=f"{name_command(document.story)}: {document.verdict} {subject}".strip(),
        heading=subject,
        state=name_state(document.verdict),
        badge=document.verdict,
        headline=words,
        ruler=None if alone is None else alone.ruler,
        rows=_make_facts(shown),
        sections=tuple(_tell_apart(_list_sections(document))),
        foot=", ".join(filter(None, (f"serve-eval {__version__}", document.header.started_at))),
    )


def _drop_marks(text: str) -> str:
    """Return a first line without the marks of the ruler, which has them itself on a page."""
    for name in ("value", "reference", "threshold"):
        text = text.replace(f"{getattr(UNICODE, name)} ", "")
    return text


def _make_facts(rows: Iterable[Statement]) -> list[Fact]:
    return [Fact(label=one.label, text=one.text, state=one.state, href=one.href) for one in rows]


def _fold(section: Section) -> Section:
    """Return a section that a reader opens; its title says what it holds."""
    return section if isinstance(section, ScriptData) else replace(section, closed=True)


def _tell_apart(sections: Iterable[Section]) -> Iterator[Section]:
    """Yield sections with a number behind a title that another one has: each is a landmark."""
    seen = Counter[str]()
    for one in sections:
        if isinstance(one, ScriptData):
            yield one
            continue
        seen[one.title] += 1
        count = seen[one.title]
        yield one if count == 1 else replace(one, title=f"{one.title} ({count})")


def _list_sections(document: Document) -> Iterator[Section]:
    """Yield the sections: the first picture, what the first screen has, then the deeper ones."""
    overview = document.overview or tabulate(document)
    if document.only is None and document.conclusions and not document.folds_overview:
        yield overview
    blocks = [block for block in document.blocks if not isinstance(block.section, PictureSection)]
    pictures = [block.section for block in document.blocks if block not in blocks]
    yield from pictures[:1]
    yield from (block.section for block in blocks if block.depth is Depth.FIRST)
    yield from document.make_page_blocks()
    yield from map(_fold, pictures[1:])
    if document.only is None and document.conclusions and document.folds_overview:
        yield _fold(overview)
    yield from (_fold(block.section) for block in blocks if block.depth is not Depth.FIRST)
    deeper = [row for row in list_statements(document) if row.depth is not Depth.FIRST]
    if rest := [row for row in deeper if row.label != "warning"]:
        yield Facts(title="Details", rows=_make_facts(rest), closed=True)
    if len(document.warnings) > WARNINGS:
        rows = [Fact(label="warning", text=line, state="warn") for line in document.warnings]
        yield Facts(title=f"{FOLDED_WARNINGS}: {len(rows)}", rows=rows, closed=True)
    if document.commands:
        rows = [
            Fact(label="" if i else "next", text=one) for i, one in enumerate(document.commands)
        ]
        yield Facts(title="Next", rows=rows)
    about = {
        "endpoint": document.endpoint,
        "model": document.subject,
        "took": f"{document.header.wall_s:.0f} s" if document.header.wall_s else "",
        "result": "" if document.result is None else str(document.result),
    }
    facts = [Fact(label=label, text=text) for label, text in about.items() if text]
    if facts:
        yield Facts(title="About this result", rows=facts, closed=True)
