"""Turn a document into its other faces: JSON, a page, what CI systems show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace

import msgspec

from serve_eval import __version__
from serve_eval.frozen import freeze
from serve_eval.json_schema import Schema, describe_type, name_schema
from serve_eval.report.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable, withhold_cases
from serve_eval.report.document.document import (
    WARNINGS,
    Depth,
    Document,
    Statement,
    join_statements,
    list_own,
    list_statements,
    list_warnings,
    name_state,
    tabulate,
)
from serve_eval.report.document.terminal import COMMANDS
from serve_eval.report.page.content import (
    DataTable,
    Fact,
    Facts,
    PageContent,
    PictureSection,
    ScriptData,
    Section,
)
from serve_eval.report.summary.headline import UNICODE
from serve_eval.storage.story_files import name_command

STATES = {
    "PASS": CiState.PASSED,
    "REGISTERED": CiState.PASSED,
    "WRITTEN": CiState.PASSED,
    "FAIL": CiState.FAILURE,
    "ERROR": CiState.ERROR,
    "KILLED": CiState.ERROR,
    "INTERRUPTED": CiState.ERROR,
}
"""States by outcome; any other one decided nothing."""


def make_ci_result(document: Document) -> CiResult:
    """Return what CI systems show of a document. A rehearsal passes and fails nothing."""
    suites = document.suites or [_make_suite(document)]
    if document.header.rehearsal:
        suites = [
            CiSuite(
                one.name,
                withhold_cases(one.cases),
                host=one.host,
                seconds=one.seconds,
            )
            for one in suites
        ]
    shown = [row for row in list_statements(document) if row.depth is Depth.FIRST or row.keep]
    deeper = [row for row in list_warnings(document) if row not in shown]
    return CiResult(
        notice=document.banner,
        title=document.command,
        outcome=document.verdict,
        suites=suites,
        table=_make_table(document),
        notes=join_statements([*shown, *deeper]),
        commands=document.commands[:COMMANDS],
        line=document.make_line(),
        grid=document.summary_lines,
    )


def _make_suite(document: Document) -> CiSuite:
    """Return the cases of a story without its own: one for each conclusion."""
    return CiSuite(
        f"serve-eval {name_command(document.story)}",
        [
            CiCase(
                document.story,
                one.name,
                state=STATES.get(one.outcome, CiState.SKIPPED),
                message=one.cause,
                line=document.make_line_of(one),
                details=join_statements(one.statements),
            )
            for one in document.conclusions
        ],
        host=document.endpoint,
        seconds=document.header.wall_s,
    )


def _make_table(document: Document) -> CiTable:
    """Return the table of the conclusions, or of a single one without it the first one.

    One of the first screen comes before deeper ones.
    """
    if document.overview is not None or document.only is None:
        table = document.overview or tabulate(document)
    else:
        tables = [
            block.section
            for block in sorted(document.blocks, key=lambda block: block.depth)
            if block.depth is not Depth.PAGE and isinstance(block.section, DataTable)
        ]
        table = tables[0] if tables else tabulate(document)
    return CiTable(
        columns=[column.name for column in table.columns],
        rows=[[cell.text for cell in row] for row in table.rows],
    )


DOCUMENT_SCHEMA = 1
"""Version of the JSON of a document."""


@freeze
class JsonStatement:
    """A fact in words below its label."""

    label: str
    text: str


@freeze
class JsonConclusion:
    """The outcome of one task, server or check, with its figures in words."""

    name: str
    outcome: str
    figures: str
    counts: str
    cause: str
    sure: bool
    statements: tuple[JsonStatement, ...]


@freeze
class JsonTable:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@freeze
class JsonCase:
    """A test case, as in the JUnit file: `state` is passed, failure, error or skipped."""

    suite: str
    group: str
    name: str
    state: str
    message: str
    properties: Mapping[str, str]


@freeze
class JsonDocument:
    """The result of a command.

    `result` holds all figures, as the file of the run folder has them; its form is that of the
    story. All other keys are the same for all stories.
    """

    schema_version: int
    story: str
    outcome: str
    exit_code: int
    line: str
    notice: str
    model: str
    endpoint: str
    started_at: str
    wall_s: float
    conclusions: tuple[JsonConclusion, ...]
    statements: tuple[JsonStatement, ...]
    tables: tuple[JsonTable, ...]
    warnings: tuple[str, ...]
    commands: tuple[str, ...]
    cases: tuple[JsonCase, ...]
    result: Mapping[str, object] | None = None


def write_document(document: Document, result: bytes = b"") -> str:
    """Return the JSON of a document, with `result`, the JSON object of all figures, if given."""
    told = describe_document(document)
    written = {one.name: getattr(told, one.name) for one in fields(told)}
    written["result"] = msgspec.Raw(result) if result else None
    return msgspec.json.encode(written).decode() + "\n"


def describe_document(document: Document) -> JsonDocument:
    """Return what JSON has of a document, without the figures of the story."""
    shown = make_ci_result(document)
    return JsonDocument(
        schema_version=DOCUMENT_SCHEMA,
        story=document.story,
        outcome=document.verdict,
        exit_code=document.exit_code,
        line=shown.said,
        notice=document.banner,
        model=document.subject,
        endpoint=document.endpoint,
        started_at=document.header.started_at,
        wall_s=document.header.wall_s,
        conclusions=tuple(
            JsonConclusion(
                name=one.name,
                outcome=one.outcome,
                figures=one.figures,
                counts=one.counts,
                cause=one.cause,
                sure=one.sure,
                statements=_list_plain(list(list_own(one))),
            )
            for one in document.ordered
        ),
        statements=_list_plain(document.statements),
        tables=tuple(
            JsonTable(
                title=table.title,
                columns=tuple(column.name for column in table.columns),
                rows=tuple(tuple(cell.text for cell in row) for row in table.rows),
            )
            for block in document.blocks
            if isinstance(table := block.section, DataTable)
        ),
        warnings=tuple(document.warnings),
        commands=tuple(document.commands),
        cases=tuple(
            JsonCase(
                suite=suite.name,
                group=case.group,
                name=case.name,
                state=case.state.value,
                message=case.said,
                properties=dict(case.properties),
            )
            for suite in shown.suites
            for case in suite.cases
        ),
    )


def describe_document_form() -> Schema:
    """Return the schema of `--json`. Readers must accept keys that it does not list."""
    return name_schema(
        describe_type(JsonDocument), "document", DOCUMENT_SCHEMA, "What --json prints of any result"
    )


def _list_plain(rows: Sequence[Statement]) -> tuple[JsonStatement, ...]:
    return tuple(
        JsonStatement(label=row.label, text=row.text) for row in rows if row.depth is not Depth.PAGE
    )


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
    return [Fact(one.label, one.text, state=one.state, href=one.href) for one in rows]


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
        yield Facts("Details", rows=_make_facts(rest), closed=True)
    if len(document.warnings) > WARNINGS:
        rows = [Fact("warning", line, state="warn") for line in document.warnings]
        yield Facts(f"{FOLDED_WARNINGS}: {len(rows)}", rows=rows, closed=True)
    if document.commands:
        rows = [Fact("" if i else "next", one) for i, one in enumerate(document.commands)]
        yield Facts("Next", rows=rows)
    about = {
        "endpoint": document.endpoint,
        "model": document.subject,
        "took": f"{document.header.wall_s:.0f} s" if document.header.wall_s else "",
        "result": "" if document.result is None else str(document.result),
    }
    facts = [Fact(label, text) for label, text in about.items() if text]
    if facts:
        yield Facts("About this result", rows=facts, closed=True)
