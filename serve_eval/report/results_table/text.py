"""Write a table of deployments by tasks as plain text of a given width. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import starmap

from rich.cells import cell_len
from rich.text import Text

from serve_eval.report.layout import wrap
from serve_eval.report.results_table.cell import MISSING
from serve_eval.report.results_table.content import BEGAN, SAMPLING_SEED, ResultsTable
from serve_eval.report.text import clean

GAP = "  "
SHORTEST = 10
"""Characters of a name that are shown at least."""
Column = list[str]


def write_text(table: ResultsTable, width: int | None = None, *, reasons: bool = True) -> str:
    """Return the lines of the table, its legend and its notes.

    If it is wider than `width`, tasks go on in a further block below, with the names of the rows
    again. Addresses are shortened and attributes that do not distinguish rows are left out before
    that, and names lose their middle before a figure is cut. None: any width.
    Without `reasons`, no note says why a cell has no value.
    """
    fitted = table if width is None else fit_names(table, width)
    lines = [*_break(clean(table.caption), width), "", *list_lines(fitted, width)]
    legend = "; ".join(starmap("{}: {}".format, table.list_legend()))
    left = [name for name in table.shown if name not in fitted.shown]
    notes = [f"not shown here: {', '.join(left)}"] if left else []
    lines += ["", *_break(legend, width)]
    lines += [
        part
        for one in (*fitted.list_notes(reasons=reasons), *notes)
        for part in _break(f"* {clean(one)}", width)
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def fit_names(table: ResultsTable, width: int) -> ResultsTable:
    """Return the table with what tells its rows apart in `width`, as far as that is possible.

    It first drops attributes that servers and launchers reported, then shortens addresses, and last
    drops attributes that the user declared. Rows stay distinct. A sampling seed says more than the
    time at which a run began, so that it stays as long as that does.
    """
    for reported in (True, False):
        for name in [one for one in reversed(table.shown) if _is_reported(one) is reported]:
            if name == SAMPLING_SEED and BEGAN in table.shown:
                continue
            fewer = replace(table, shown=[one for one in table.shown if one != name])
            if not _fits(table, width) and _has_distinct_rows(fewer, table):
                table = fewer
        if reported and not _fits(table, width):
            table = _shorten_reported(table, width)
    return table


def _fits(table: ResultsTable, width: int) -> bool:
    names = zip(*_list_names(table), strict=True)
    columns = [*map(list, names), *_list_tasks(table)]
    return sum(_measure(one) + len(GAP) for one in columns) - len(GAP) <= width


def _has_distinct_rows(fewer: ResultsTable, table: ResultsTable) -> bool:
    """Return True if a table tells as many rows apart as another one."""
    apart, before = ({tuple(one.name(row)) for row in one.rows} for one in (fewer, table))
    return len(apart) >= len(before)


def _is_reported(name: str) -> bool:
    """Return True for an attribute that the user did not declare: an address, a server."""
    return name.partition(".")[0] in ("launcher", "endpoint", "server", "image")


def _shorten_reported(table: ResultsTable, width: int) -> ResultsTable:
    """Return the table with shorter attributes that servers and launchers reported."""
    for name in (one for one in table.shown if _is_reported(one)):
        bare = [
            row.attributes.get(name, "").removeprefix("http://").removesuffix("/v1")
            for row in table.rows
        ]
        shorter = _with_values(table, name, bare)
        longest = max(map(cell_len, bare), default=0)
        table = shorter if _has_distinct_rows(shorter, table) else table
        while not _fits(table, width) and longest > SHORTEST:
            longest -= 1
            cut = _with_values(table, name, [_cut(one, longest) for one in bare])
            if not _has_distinct_rows(cut, table):
                break
            table = cut
    return table


def _with_values(table: ResultsTable, name: str, values: Sequence[str]) -> ResultsTable:
    rows = [
        replace(row, attributes={**row.attributes, name: value}) if value else row
        for row, value in zip(table.rows, values, strict=True)
    ]
    return replace(table, rows=rows)


def list_lines(table: ResultsTable, width: int | None = None) -> Iterator[str]:
    """Yield the lines of the table alone."""
    tasks = [list(one) for one in _list_tasks(table)]
    names = [list(one) for one in zip(*_list_names(table), strict=True)]
    if width is not None:
        names = _shorten(names, width - max(map(_measure, tasks), default=0))
    room = None if width is None else width - sum(_measure(one) + len(GAP) for one in names)
    for i, block in enumerate(_split(tasks, room)):
        yield from ("",) if i else ()
        padded = [_pad(column) for column in (*names, *block)]
        yield from (GAP.join(cells) for cells in zip(*padded, strict=True))


def _list_names(table: ResultsTable) -> Iterator[list[str]]:
    heads = [clean(head) for head in table.heads]
    yield heads
    yield [""] * len(heads)
    for row in table.rows:
        yield [" ".join(clean(name).split()) or MISSING for name in table.name(row)]


def _list_tasks(table: ResultsTable) -> Iterator[Column]:
    for i, column in enumerate(table.columns):
        cells = [row.cells[i] for row in table.rows]
        figures = [MISSING if cell is None else cell.figures(column.metric) for cell in cells]
        widest = max(map(len, figures), default=0)
        marks = ["" if cell is None else " ".join(cell.marks) for cell in cells]
        shown = [f"{one:<{widest}} {mark}" for one, mark in zip(figures, marks, strict=True)]
        yield [clean(column.heading), clean(column.size), *shown]


def _measure(column: Column) -> int:
    return max(map(cell_len, column))


def _pad(column: Column) -> Column:
    widest = _measure(column)
    return [cell + " " * (widest - cell_len(cell)) for cell in column]


def _split(columns: Sequence[Column], room: int | None) -> Iterator[list[Column]]:
    """Yield the columns in blocks that fit, each with one column at least."""
    block: list[Column] = []
    used = 0
    for column in columns:
        wide = _measure(column) + len(GAP)
        if block and room is not None and used + wide - len(GAP) > room:
            yield block
            block, used = [], 0
        block.append(column)
        used += wide
    yield block


def _shorten(names: list[Column], room: int) -> list[Column]:
    """Return the columns of names in `room` characters, the widest one shortened first."""
    names = list(names)
    while sum(_measure(one) + len(GAP) for one in names) > room:
        widest = max(range(len(names)), key=lambda i: _measure(names[i]))
        longest = _measure(names[widest]) - 1
        if longest < SHORTEST:
            break
        names[widest] = [_cut(cell, longest) for cell in names[widest]]
    return names


def _cut(name: str, longest: int) -> str:
    """Return a name without its middle: the end tells deployments apart."""
    if cell_len(name) <= longest:
        return name
    plain = name.replace("...", "", 1) if name.count("...") == 1 else name
    kept = longest - 3
    while cell_len(short := f"{plain[: kept - kept // 2]}...{plain[-(kept // 2) :]}") > longest:
        kept -= 1
    return short


def _break(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text] if text else []
    first, *more = wrap(Text(text), max(20, width - len(GAP)))
    return [first.plain, *(f"{GAP}{line.plain}" for line in more)] if text else []
