"""Write a table of deployments by tasks as plain text of a given width, or draw it. Pure.

The picture has a panel for each task, with dots and intervals. A page or a phone can scale it:
names stand above their intervals, so that it needs little width.
"""

from __future__ import annotations

import hashlib
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.text import Text

from serve_eval.frozen import freeze_places
from serve_eval.report.results_table.cell import MISSING, ResultCell
from serve_eval.report.results_table.content import BEGAN, SAMPLING_SEED, ResultsTable, TaskColumn
from serve_eval.report.text import clean, wrap
from serve_eval.schema import VerdictOutcome

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
            cut = _with_values(table, name, [_cut_name(one, longest) for one in bare])
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
        names[widest] = [_cut_name(cell, longest) for cell in names[widest]]
    return names


def _cut_name(name: str, longest: int) -> str:
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


WIDTH, MARGIN = 480, 16
LINE, ROW, AXIS = 17, 38, 34
"""Heights of a line of text, of a row with its interval, and of an axis with its numbers."""
WIDE = 760
"""Pixels beyond which the picture does not grow on a wide screen."""
CHARACTERS = 52
"""Characters of the name and of the figures of a row together."""
_STYLE = (
    f"svg{{max-width:{WIDE}px;height:auto;background:#fff}}"
    "text{font:12px Arial,Helvetica,sans-serif;fill:#1a1a1a}"
    ".head{font-weight:bold;font-size:14px}.small{font-size:11px;fill:#555}"
    ".grid{stroke:#ddd}.axis{stroke:#777}.zero{stroke:#1a1a1a;stroke-width:1.5}.range{stroke-width:2.5}"
)
_COLOURS = {
    VerdictOutcome.FAIL: "#b3261e",
    VerdictOutcome.ERROR: "#b3261e",
    VerdictOutcome.INCONCLUSIVE: "#a15c00",
}
_COLOUR = "#0b57a4"
_PROVEN = {"drop": "#8a1f9c", "rise": "#1b7f3b"}
"""A proven change is a triangle, which points down or up, of its own colour."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@freeze_places
class ValueAxis:
    """An axis of numbers: its ends, and its ticks, which are round numbers."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Return the x coordinate of a value."""
        share = (value - self.low) / (self.high - self.low)
        return MARGIN + share * (WIDTH - 2 * MARGIN)


def write_svg(table: ResultsTable) -> str:
    """Return an SVG document with a title, a description and, for each task, a panel."""
    body: list[str] = []
    at = 0
    for i, column in enumerate(table.columns):
        cells = [(table.label(row), row.cells[i]) for row in table.rows]
        at = _draw_panel(column, cells, at, body)
    legend = [f"{mark}: {meaning}" for mark, meaning in table.list_legend()]
    at += 6
    said = [*legend, *(" ".join(clean(note).split()) for note in table.list_notes(plain=True))]
    for line in (part for one in said for part in textwrap.wrap(one, 76)):
        body.append(_text(MARGIN, at + LINE, line, "small"))
        at += LINE
    return _frame(table, body, at + MARGIN)


def _frame(table: ResultsTable, body: Sequence[str], height: int) -> str:
    title, description = _make_safe(table.caption), _make_safe("; ".join(_describe(table)))
    name = hashlib.sha256(f"{title}{description}".encode()).hexdigest()[:10]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%"'
        f' role="img" aria-labelledby="t{name} d{name}">',
        f'<title id="t{name}">{title}</title>',
        f'<desc id="d{name}">{description}</desc>',
        f"<style>{_STYLE}</style>",
    )
    return "\n".join((*head, *body, "</svg>")) + "\n"


def _describe(table: ResultsTable) -> Iterator[str]:
    for row in table.rows:
        name = table.label(row)
        for column, cell in zip(table.columns, row.cells, strict=True):
            shown = MISSING if cell is None else cell.write(column.metric)
            yield f"{column.heading}: {name}: {shown}"
    yield from table.list_notes(plain=True)


def _draw_panel(
    column: TaskColumn,
    cells: Sequence[tuple[str, ResultCell | None]],
    top: int,
    body: list[str],
) -> int:
    """Append the marks of a task, and return the y coordinate below them."""
    body.append(_text(MARGIN, top + 24, _cut(column.heading, 36), "head"))
    body.append(
        _text(WIDTH - MARGIN, top + 24, f"{column.count}, 95 % intervals", "small", end=True)
    )
    first = top + 32
    ruler = make_ruler([cell for _, cell in cells if cell is not None])
    bottom = first + ROW * len(cells)
    for tick in ruler.ticks:
        x = ruler.place(tick)
        body.append(_line(x, first, x, bottom, "grid"))
        body.append(_text(x, bottom + 16, f"{tick:g}", "small", middle=True))
    body.append(_line(MARGIN, bottom, WIDTH - MARGIN, bottom, "axis"))
    body.append(_text(WIDTH / 2, bottom + 30, column.unit, "small", middle=True))
    if any(cell is not None and cell.signed for _, cell in cells):
        x = ruler.place(0.0)
        body.append(_line(x, first, x, bottom, "zero"))
    for i, (name, cell) in enumerate(cells):
        body += _draw_row(name, column, cell, ruler, first + ROW * i)
    return bottom + AXIS


def _draw_row(
    name: str, column: TaskColumn, cell: ResultCell | None, ruler: ValueAxis, top: int
) -> Iterator[str]:
    figures = MISSING if cell is None else cell.write(column.metric)
    room = CHARACTERS - len(figures)
    yield f"<g><title>{_make_safe(f'{name}: {figures}')}</title>"
    yield _text(MARGIN, top + 14, _cut(name, room), "")
    yield _text(WIDTH - MARGIN, top + 14, figures, "", end=True)
    if cell is not None and cell.value is not None:
        colour = _PROVEN.get(cell.change) or (
            _COLOUR if cell.signed else _COLOURS.get(cell.outcome, _COLOUR)
        )
        y = top + 26
        if cell.interval is not None:
            low, high = map(ruler.place, cell.interval)
            yield (
                f'<line class="range" x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}"'
                f' stroke="{colour}"/>'
            )
        fill = "#fff" if cell.estimate else colour
        yield _draw_point(ruler.place(cell.value), y, cell.change, fill, colour)
    yield "</g>"


def _draw_point(across: float, down: int, change: str, fill: str, colour: str) -> str:
    paint = f'fill="{fill}" stroke="{colour}" stroke-width="2"/>'
    if not change:
        return f'<circle cx="{across:.1f}" cy="{down}" r="5" {paint}'
    end = 5 if change == "drop" else -5
    left, right, flat = across - 6, across + 6, down - end
    at = f"{left:.1f},{flat} {right:.1f},{flat} {across:.1f},{down + end}"
    return f'<polygon points="{at}" {paint}'


def make_ruler(cells: Sequence[ResultCell]) -> ValueAxis:
    """Return the axis of a task, which holds every value and interval.

    It need not begin at 0, since dots have no length; that of differences holds 0.
    """
    known = [
        x
        for cell in cells
        for x in (cell.value, *(cell.interval or ()), *((0.0,) if cell.signed else ()))
        if x is not None and math.isfinite(x)
    ]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - 1.0, high + 1.0
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    start, stop = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(i * step for i in range(start, stop + 1))
    return ValueAxis(ticks[0], ticks[-1], ticks)


def _cut(text: str, longest: int) -> str:
    """Return a text on one line without its middle: the end tells deployments apart."""
    flat = " ".join(clean(text).split())
    half = (longest - 3) // 2
    return flat if len(flat) <= longest else f"{flat[: longest - 3 - half]}...{flat[-half:]}"


def _make_safe(text: str) -> str:
    return escape(_NOT_XML.sub("?", " ".join(clean(text).split())))


def _text(
    across: float, down: float, said: str, kind: str, *, end: bool = False, middle: bool = False
) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{across:.1f}" y="{down:.1f}"{named}{anchor}>{_make_safe(said)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"/>'
