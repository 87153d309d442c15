"""Make the document of results of other tools that were imported as references. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.report.document import Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.summary.figures import write_number
from serve_eval.shell_words import join_words, quote_path
from serve_eval.workflows.references.imports.import_results import (
    ImportedReference,
    ImportedResults,
)

IMPORTED = "WRITTEN"
MOST_LOST = 5
"""Lines about what was not imported on the first screen."""


def make_document(found: ImportedResults, source: Path, to: Path) -> Document:
    """Return the document of an import: each reference, what is unknown of it, and what is lost."""
    lost = [
        Statement(
            label="lost",
            text=text,
            state="warn",
            depth=Depth.FIRST if number < MOST_LOST else Depth.MORE,
        )
        for number, text in enumerate(found.lost)
    ]
    if len(found.lost) > MOST_LOST:
        more = f"{len(found.lost) - MOST_LOST} more results, which -v shows"
        lost.append(Statement(label="lost", text=more, state="warn"))
    first = found.written[0]
    return Document(
        story="references",
        command=f"serve-eval references import {quote_path(source)}",
        header=make_header(0),
        conclusions=[_conclude(one) for one in found.written],
        model=first.model,
        overview=_compare(found.written) if len(found.written) > 1 else None,
        statements=[Statement(label="into", text=str(to)), *lost],
        commands=[
            first.use,
            f"{join_words(['serve-eval', 'references', 'show', first.file.stem])}"
            f" --references-dir {quote_path(to)}",
        ],
    )


def _compare(written: Sequence[ImportedReference]) -> DataTable:
    """Return the table of several references: what is known of each, and what refuses runs."""
    names = ("task", "model", "value", "prompts", "unknown", "refused for")
    rows = [
        [
            one.task,
            one.model,
            write_number(one.value),
            "" if one.count is None else f"{one.count:,}",
            ", ".join(one.unknown),
            one.refused,
        ]
        for one in written
    ]
    return DataTable(
        title="References",
        columns=[DataColumn(name=name, number=i in (2, 3)) for i, name in enumerate(names)],
        rows=[[DataCell(text=text) for text in row] for row in rows],
    )


def _conclude(one: ImportedReference) -> Conclusion:
    over = "" if one.count is None else f" over {one.count:,} prompt{'s' * (one.count != 1)}"
    return Conclusion(
        name=one.task,
        outcome=IMPORTED,
        figures=f"{write_number(one.value)}{over}  {one.model}",
        statements=list(_describe(one)),
    )


def _describe(one: ImportedReference) -> Iterator[Statement]:
    yield Statement(label="from", text=one.source)
    yield Statement(label="prompts", text=one.prompts)
    kept = "kept: the verdict of a run of these prompts is paired" if one.paired else "not kept"
    yield Statement(label="scores", text=kept)
    if one.unknown:
        yield Statement(label="unknown", text=", ".join(one.unknown), state="warn")
    if one.refused:
        text = (
            f"a run is refused for {one.refused}, which are not ours, unless it has"
            f" --allow-mismatch {one.refused}"
        )
        yield Statement(label="protocol", text=text, state="warn")
    known = "; ".join(f"{name} {value!r}" for name, value in one.protocol.items())
    yield Statement(label="known", text=known, depth=Depth.MORE)
    for text in one.remarks:
        yield Statement(label="note", text=text, state="warn")
    yield Statement(label="file", text=str(one.file), depth=Depth.MORE)
