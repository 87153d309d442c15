"""Write a table of deployments by tasks as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.report.ci.markdown import escape_text
from serve_eval.report.results_table.cell import MISSING
from serve_eval.report.results_table.content import ResultsTable, TaskColumn


def write_markdown_table(table: ResultsTable) -> str:
    """Return the caption, the table, its legend and its notes."""
    return "".join(f"{line}\n" for line in list_table_lines(table))


def list_table_lines(table: ResultsTable) -> Iterator[str]:
    """Yield the lines of the caption, the table, its legend and its notes."""
    yield escape_text(table.caption)
    yield ""
    yield from _list_rows(table)
    yield ""
    yield from (f"* {escape_text(mark)}: {meaning}" for mark, meaning in table.list_legend())
    yield from (f"* {escape_text(note)}" for note in table.list_notes())


def _list_rows(table: ResultsTable) -> Iterator[str]:
    heads = [*table.heads, *(_head(column) for column in table.columns)]
    yield _write_row(list(map(escape_text, heads)))
    yield _write_row(["---"] * len(heads))
    for row in table.rows:
        pairs = zip(table.columns, row.cells, strict=True)
        cells = [MISSING if cell is None else cell.write(column.metric) for column, cell in pairs]
        # Two tildes in a row would strike out what is between them, two stars would slant it.
        shown = [cell.replace("~", "\\~").replace("*", "\\*") for cell in cells]
        yield _write_row([*(escape_text(name) or MISSING for name in table.name(row)), *shown])


def _head(column: TaskColumn) -> str:
    told = column.heading.endswith((f"({column.size})", f", {column.size})"))
    return column.heading if told else f"{column.heading} ({column.size})"


def _write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
