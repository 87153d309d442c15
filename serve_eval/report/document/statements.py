"""Order the statements and the conclusions of a document for all faces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from serve_eval.report.document.document import (
    Conclusion,
    Depth,
    Document,
    Statement,
    name_state,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable

WARNINGS = 2
"""Warnings of the first screen at most."""
ASKED = "asked"
"""The label of what was asked."""
_KEPT = ("warning", "error")
"""Labels of what must be seen of a task that passed among several."""


def list_statements(document: Document) -> list[Statement]:
    """Return all statements: causes, findings and counts by conclusion, the others, warnings.

    Of several conclusions those that passed need no words on the first screen, and none needs its
    counts: the table has them.
    """
    if (one := document.only) is not None:
        found = list(list_own(one))
    else:
        found = list(_join_alike(document.ordered))
    return [*found, *document.statements, *list_warnings(document)]


def _join_alike(conclusions: Sequence[Conclusion]) -> Iterator[Statement]:
    """Yield the statements of several conclusions behind their names, equal ones once."""
    named: dict[tuple[str, str], list[str]] = {}
    for one in conclusions:
        for row in list_own(one):
            named.setdefault((row.label, row.text), []).append(one.name)
    for one in conclusions:
        for row in list_own(one):
            names = named.pop((row.label, row.text), [])
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                yield _place(row, one, f"{names[0]}{more}")


def _place(row: Statement, one: Conclusion, names: str) -> Statement:
    """Return a statement of a conclusion as it stands among those of all."""
    passed = name_state(one.outcome) == "pass" and row.label not in _KEPT and not row.keep
    silent = passed or row.label == ASKED
    depth = max(row.depth, Depth.MORE) if silent else row.depth
    return replace(row, text=f"{names}: {row.text}", depth=depth)


def list_own(one: Conclusion) -> Iterator[Statement]:
    """Yield the statements of a conclusion, with its cause first and its counts last.

    Statements that have more words for one of them stand in its place.
    """
    labels = {row.label for row in one.statements}
    explained = {"why", "likely", *(("error",) if one.outcome == "ERROR" else ())}
    if one.cause and labels.isdisjoint(explained):
        yield Statement(label="why" if one.sure else "likely", text=one.cause)
    yield from one.statements
    if one.counts and ASKED not in labels:
        yield Statement(label=ASKED, text=one.counts)


def list_warnings(document: Document) -> Iterator[Statement]:
    """Yield the warnings, of which the first few stand on the first screen.

    One that goes on with what the notice says comes last.
    """
    begun = document.notice.partition(":")[0]
    repeated = [one for one in document.warnings if begun and one.startswith(begun)]
    new = [one for one in document.warnings if one not in repeated]
    for i, line in enumerate([*new, *repeated]):
        depth = Depth.FIRST if i < min(WARNINGS, len(new)) else Depth.MORE
        yield Statement(label="warning", text=line, depth=depth, state="warn")


def tabulate(document: Document) -> DataTable:
    """Return the table of several conclusions, the worst first, without an empty column."""
    named = ("outcome", document.noun.removesuffix("s"), "value", "asked")
    rows = [
        [
            DataCell(text=one.outcome, state=name_state(one.outcome)),
            DataCell(text=one.name),
            DataCell(text=one.figures),
            DataCell(text=one.counts),
        ]
        for one in document.ordered
    ]
    kept = [i for i in range(len(named)) if any(row[i].text for row in rows)]
    return DataTable(
        title=document.noun.capitalize(),
        columns=[DataColumn(name=named[i]) for i in kept],
        rows=[[row[i] for i in kept] for row in rows],
    )


def join_statements(rows: Iterable[Statement]) -> list[str]:
    """Return statements as lines of text."""
    return [": ".join(filter(None, (row.label, row.text))) for row in rows]
