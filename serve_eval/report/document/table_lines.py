"""Lay a table of a document out in lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import fit_tables, wrap
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State
from serve_eval.report.text import clean

GAP, SHORTEST, WORDS = 2, 12, 24
"""Width between two columns, and the least of a shortened name and of a column of words."""
STYLES: dict[State, str] = {"pass": "bold green", "fail": "bold red", "warn": "bold yellow"}
Rows = list[list[Text]]


def lay_out_table(table: DataTable, console: Console, *, verbose: bool) -> list[Text]:
    """Return the lines of a table, whose columns fit the width if that is possible.

    Spare columns are left out, a last column of words goes on below itself, and names lose their
    middle, in this order. Anywhere but on a terminal a row of words is one line. With `verbose`,
    the table has its title and its caption.
    """
    width = console.width - 1
    columns, rows = _leave_out_spare(table, width)
    if rows and not columns[-1].number:
        rows, width = _break_last(columns, rows, width, console)
    rows = _shorten_names(columns, rows, width)
    names = [*(clean(column.name) for column in columns), ""]
    left = [clean(column.name) for column in columns if not column.number]
    options = console.options.update_width(width)
    lines: list[Text] = [Text(f" {clean(table.title)}", style="bold")] if verbose else []
    for part in fit_tables(names, [[*row, Text()] for row in rows], width, left):
        for segments in console.render_lines(part, options, pad=False, new_lines=False):
            line = Text(" ").append_tokens(
                (one.text, one.style) for one in segments if not one.control
            )
            line.rstrip()
            lines.append(line)
    if verbose and table.caption:
        told = Text(clean(table.caption), style="dim")
        parts = wrap(told, console.width - 1) if console.is_terminal else [told]
        lines += [Text(" ").append_text(part) for part in parts]
    return lines


def _measure(columns: Sequence[DataColumn], rows: Rows) -> int:
    """Return the width of a table, with the gap after each column and after the table."""
    widths = (
        max(len(column.name), *(row[i].cell_len for row in rows))
        for i, column in enumerate(columns)
    )
    return sum(width + GAP for width in widths) + GAP


def _leave_out_spare(table: DataTable, width: int) -> tuple[list[DataColumn], Rows]:
    """Return columns and cells, without spare columns as long as they do not fit."""
    columns = list(table.columns)
    rows = [list(map(_write_cell, row)) for row in table.rows]
    spares = (column for column in reversed(table.columns) if column.spare)
    for spare in sorted(spares, key=lambda column: column.spare):
        if rows and _measure(columns, rows) > width:
            place = columns.index(spare)
            del columns[place]
            for row in rows:
                del row[place]
    return columns, rows


def _break_last(
    columns: Sequence[DataColumn], rows: Rows, width: int, console: Console
) -> tuple[Rows, int]:
    """Return the rows with the words of the last column in lines, and the width they need."""
    needed = _measure(columns, rows)
    if not console.is_terminal:
        return rows, max(width, needed)
    last = max(len(columns[-1].name), *(row[-1].cell_len for row in rows))
    room = width - (needed - last)
    if room >= last or room < WORDS:
        return rows, width
    broken: Rows = []
    for *others, words in rows:
        for i, line in enumerate(words.wrap(console, room)):
            line.rstrip()
            broken.append([*([Text() for _ in others] if i else others), line])
    return broken, width


def _shorten_names(columns: Sequence[DataColumn], rows: Rows, width: int) -> Rows:
    """Return rows whose longest names lost their middle, if the table fits then."""
    words = [i for i, column in enumerate(columns) if not column.number]
    over = _measure(columns, rows) - width if rows else 0
    if over <= 0 or not words:
        return rows
    widest = max(words, key=lambda i: max(row[i].cell_len for row in rows))
    room = max(row[widest].cell_len for row in rows) - over
    if room < SHORTEST:
        return rows
    return [[*row[:widest], _shorten(row[widest], room), *row[widest + 1 :]] for row in rows]


def _write_cell(cell: DataCell) -> Text:
    return Text(clean(cell.text), style=STYLES.get(cell.state, ""))


def _shorten(name: Text, room: int) -> Text:
    """Return a name without its middle: the ends tell the runs of a matrix apart."""
    text, half = name.plain, (room - 1) // 2
    if len(text) <= room:
        return name
    return Text(f"{text[: room - 1 - half]}…{text[-half:]}", style=name.style)
