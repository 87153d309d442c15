"""Print a document on a terminal: a first screen that holds the verdict, or all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from rich.console import Console
from rich.text import Text

from serve_eval.report.document.document import (
    Conclusion,
    Depth,
    Document,
    Statement,
    list_statements,
    name_state,
    tabulate,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Facts, State, TextLines
from serve_eval.report.summary.headline import (
    AROUND,
    ASCII,
    UNICODE,
    WIDEST,
    AxisPoints,
    Marks,
    choose_marks,
    draw_axis,
)
from serve_eval.report.text import clean, fit_tables, wrap

LINES = 22
"""Lines of the first screen at most: 24, less the two that name the folder and the page."""
ROWS = 12
"""Statements of the first screen at most."""
HEIGHT, CAUSE = 3, 5
"""Lines of a statement of the first screen at most, and of a cause."""
TABLE = 8
"""Lines that are kept for the first table, if it has as many."""
COMMANDS = 3
"""Next commands at most, on any face."""
LABEL = 9
"""Width of the column of labels."""
MARK = "bold reverse"
"""The style of the part of a text that decides."""
_LABELS = {"warning": "yellow", "error": "red", "why": "bold", "likely": "bold"}


def print_document(
    document: Document, console: Console, *, verbose: bool = False, brief: bool = False
) -> None:
    """Print the first screen of a document, or with `verbose` all but what only the page has.

    With `brief`, print only the notice and the verdict, each on one line whatever the width.
    """
    screen = _Screen(console, verbose=verbose)
    for line in screen.conclude(document) if brief else screen.lay_out(document):
        console.print(line, soft_wrap=True)


class _Screen:
    """The lines of a document for one console."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console, self._verbose = console, verbose
        self._marks = choose_marks(console)
        self._hidden = 0

    def lay_out(self, document: Document) -> list[Text]:
        """Return all lines, in their order."""
        head = list(self._begin(document))
        tail = [
            Text()
            .append(f" {'' if i else 'next':<{LABEL}}", style="dim")
            .append(clean(command), style="bold")
            for i, command in enumerate(document.commands[:COMMANDS])
        ]
        room = LINES - len(head) - len(tail) - 1
        tables = list(self._list_blocks(document))
        kept = min(TABLE, sum(map(len, tables)))
        rows = self._choose_rows(document, room - kept)
        room -= len(rows)
        shown: list[Text] = []
        for table in tables:
            part = table if self._verbose else self._cut(table, room - len(shown))
            shown += part
        more = self._tell_rest()
        return [*head, *rows, *shown, *tail, *more]

    def conclude(self, document: Document) -> Iterator[Text]:
        """Yield the notice, and the verdict with its figures."""
        if document.banner:
            yield Text(document.banner, style="bold yellow")
        if (one := document.only) is None:
            words = document.counted if document.conclusions else ""
        else:
            words = "  ".join(filter(None, (one.name, self._mark(one.drawn) or one.figures)))
        words = clean(words)
        style = STYLES.get(name_state(document.verdict), "bold")
        line = Text().append(f" {document.verdict} ", style=f"{style} reverse")
        if line.cell_len + len(words) + 2 > self._console.width:
            words = words.replace(" reference ", " ref ", 1)
        yield line.append(f"  {words}" if words else "")

    def _begin(self, document: Document) -> Iterator[Text]:
        """Yield the notice, the verdict with its figures, and the drawn line or the overview."""
        *notice, line = self.conclude(document)
        yield from notice
        if self._console.is_terminal:
            first, *others = wrap(line, self._console.width)
            yield first
            rest = wrap(Text(" ").join(others), max(20, self._console.width - LABEL - 1))
            yield from (Text(" " * (LABEL + 1)) + one for one in rest if one)
        else:
            yield line
        if (one := document.only) is not None and one.ruler is not None:
            yield self._draw(one)
        if one is None and document.conclusions:
            table = self._lay_out_table(document.overview or tabulate(document))
            yield from table if self._verbose else self._cut(table, LINES // 2)

    def _mark(self, text: str) -> str:
        """Return a text with marks that the console can show."""
        if self._marks is UNICODE:
            return text
        for mark in fields(Marks):
            shown, plain = getattr(UNICODE, mark.name), getattr(ASCII, mark.name)
            text = text.replace(f"{shown} ", f"{plain} ")
        return text

    def _draw(self, one: Conclusion) -> Text:
        assert one.ruler is not None
        row = one.ruler.rows[0]
        points = AxisPoints(
            value=row.value,
            interval=row.interval,
            threshold=row.threshold,
            reference=row.reference,
        )
        width = min(WIDEST, self._console.width - AROUND)
        return Text(f" {'':<{LABEL}}{draw_axis(width, self._marks, points)}")

    def _choose_rows(self, document: Document, room: int) -> list[Text]:
        """Return the lines of the statements that fit, and count the others."""
        lines, rows = list[Text](), 0
        for one in list_statements(document):
            if self._verbose:
                lines += [] if one.depth is Depth.PAGE else self._write_row(one)
                continue
            cause = one.label in ("why", "likely")
            written = self._write_row(one, most=one.last or (CAUSE if cause else HEIGHT))
            fits = rows < ROWS and len(lines) + self._measure(written) <= room
            if one.depth is Depth.FIRST and fits:
                lines, rows = lines + written, rows + 1
            elif one.depth is not Depth.PAGE:
                self._hidden += 1
        return lines

    def _measure(self, lines: Sequence[Text]) -> int:
        """Return the lines that a terminal of this width needs."""
        return sum(1 + line.cell_len // max(20, self._console.width) for line in lines)

    def _write_row(self, one: Statement, most: int | None = None) -> list[Text]:
        """Return a statement in lines; anywhere but on a terminal a line of it stays one."""
        terminal = self._console.is_terminal
        width = max(20, self._console.width - LABEL - 1)
        style = _LABELS.get(one.label, "red" if one.state == "fail" else "")
        words = Text(self._mark(clean(one.text)), style=style)
        if one.mark is not None:
            words.stylize(MARK, *one.mark)
        parts = wrap(words, width) if terminal or most is not None else list(words.split("\n"))
        if most is not None and len(parts) > most:
            parts = self._shorten(parts, most, width, from_end=bool(one.last))
            self._hidden += 1
        if not terminal and most is not None and not one.last:
            parts = [Text(" ").join(parts)]
        lines = []
        for i, part in enumerate(parts):
            name = "" if i else one.label
            space = " " if len(name) >= LABEL else ""
            line = Text().append(f" {name:<{LABEL}}{space}", style=_LABELS.get(one.label, "dim"))
            line.append_text(part)
            line.rstrip()
            lines.append(line)
        return lines

    def _shorten(self, parts: list[Text], most: int, width: int, *, from_end: bool) -> list[Text]:
        """Return at most `most` lines of a text, the first or the last, with a mark of the cut."""
        if from_end:
            kept = parts[len(parts) - most :]
            kept[0] = Text("... ").append_text(kept[0])
            kept[0].truncate(width)
            return kept
        kept = parts[:most]
        kept[-1].truncate(width - 4)
        kept[-1].append(" ...")
        return kept

    def _list_blocks(self, document: Document) -> Iterator[list[Text]]:
        """Yield the lines of each block that this depth shows."""
        deepest = Depth.MORE if self._verbose else Depth.FIRST
        for block in document.blocks:
            if block.depth > deepest:
                self._hidden += block.depth is Depth.MORE and isinstance(
                    block.section, DataTable | TextLines | Facts
                )
            elif isinstance(block.section, DataTable) and block.section.rows:
                yield self._lay_out_table(block.section)
            elif isinstance(block.section, TextLines) and block.section.lines:
                title = Text(f" {clean(block.section.title)}", style="bold")
                yield [title, *(Text(f"   {clean(line)}") for line in block.section.lines)]

            elif isinstance(block.section, Facts):
                rows = [Statement(one.label, one.text) for one in block.section.rows]
                title = Text(f" {clean(block.section.title)}", style="bold")
                yield [title, *(line for row in rows for line in self._write_row(row))]

    def _lay_out_table(self, table: DataTable) -> list[Text]:
        """Return the lines of a table. Rows that no screen holds are only counted."""
        seen = table if self._verbose else replace(table, rows=table.rows[:LINES])
        lines = lay_out_table(seen, self._console, verbose=self._verbose)
        return lines + [Text()] * (len(table.rows) - len(seen.rows))

    def _cut(self, lines: list[Text], room: int) -> list[Text]:
        """Return the lines of a table that fit into `room`, with the number of the others."""
        if len(lines) <= room:
            return lines
        if room < 3:
            self._hidden += 1
            return []
        left = len(lines) - room + 1
        return [*lines[: room - 1], Text(f" and {left} more rows with -v", style="dim")]

    def _tell_rest(self) -> list[Text]:
        """Return the line about what -v adds."""
        if not self._hidden or self._verbose:
            return []
        told = f"-v adds {self._hidden} more {'fact' if self._hidden == 1 else 'facts'}"
        return [Text(f" {'more':<{LABEL}}{told}", style="dim")]


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
