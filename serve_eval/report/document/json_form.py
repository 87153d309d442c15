"""Write a document as JSON: one schema for the results of all commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from serve_eval.json_schema import Schema, describe_type, name_schema
from serve_eval.report.ci.ci_result import CiSuite
from serve_eval.report.document.ci import make_ci_result
from serve_eval.report.document.document import Depth, Document, Statement
from serve_eval.report.document.statements import list_own
from serve_eval.report.page.content import DataTable

DOCUMENT_SCHEMA = 1
"""Version of the JSON of a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonStatement:
    """A fact in words below its label."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonConclusion:
    """The outcome of one task, server or check, with its figures in words."""

    name: str
    outcome: str
    figures: str
    counts: str
    cause: str
    sure: bool
    statements: tuple[JsonStatement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonTable:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCase:
    """A test case, as in the JUnit file: `state` is passed, failure, error or skipped."""

    suite: str
    group: str
    name: str
    state: str
    message: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    fields = {name: getattr(told, name) for name in told.__slots__}
    fields["result"] = msgspec.Raw(result) if result else None
    return msgspec.json.encode(fields).decode() + "\n"


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
        cases=tuple(case for suite in shown.suites for case in _list_cases(suite)),
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


def _list_cases(suite: CiSuite) -> list[JsonCase]:
    return [
        JsonCase(
            suite=suite.name,
            group=case.group,
            name=case.name,
            state=case.state.value,
            message=case.said,
            properties=dict(case.properties),
        )
        for case in suite.cases
    ]
