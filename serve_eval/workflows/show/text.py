"""Print chosen samples on a terminal: a line for each, or everything that is known about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import say
from serve_eval.report.samples.details import describe_failure
from serve_eval.report.samples.samples import SampleRow, ShownSample
from serve_eval.report.summary import name_expected
from serve_eval.shell_words import quote_argument, quote_path
from serve_eval.workflows.show.flips import FlippedPair
from serve_eval.workflows.show.sample_text import (
    SamplePrinter,
    choose_style,
    describe_outcome,
    put_on_a_line,
)
from serve_eval.workflows.show.story import ShownRun

LONGEST_ID, LEAST_TEXT = 28, 8
"""Most columns of an id, and least columns of an answer."""
GAP = "  "


def render(shown: ShownRun, console: Console, *, whole: bool) -> None:
    """Print the chosen samples, the number of the others, and how to see them."""
    for line in _head(shown):
        say(console, line)
    if shown.brief:
        _print_table([*map(_row, shown.rows), *map(_pair_row, shown.pairs)], console)
    else:
        printer = SamplePrinter(console, whole=whole)
        parts: list[Callable[[], None]]
        parts = [partial(printer.print_sample, one) for one in shown.samples]
        parts += [partial(printer.print_pair, one) for one in shown.pairs]
        for number, print_part in enumerate(parts):
            if number or shown.fell is not None:
                console.print()
            print_part()
    for line in _foot(shown):
        say(console, line)


def _head(shown: ShownRun) -> Iterator[str]:
    if shown.a is not None:
        yield f"A is {put_on_a_line(shown.a)}, B is {put_on_a_line(shown.run)}"
    if shown.fell is not None:
        origin = "A to B" if shown.a is not None else "the reference's first run"
        yield f"from {origin}: {shown.fell} scores fell, {shown.rose} rose ({shown.asked} samples)"
    if not shown.found:
        yield f"none of {shown.asked} samples matches" if shown.asked else "no sample was sent"


def _foot(shown: ShownRun) -> Iterator[str]:
    listed: list[SampleRow | ShownSample | FlippedPair]
    listed = [*shown.rows, *shown.samples, *shown.pairs]
    if more := shown.found - len(listed):
        yield ""
        yield f"… {more} more: --all"
    if shown.brief and listed:
        first = listed[0]
        name = first.b.id if isinstance(first, FlippedPair) else first.id
        other = "" if shown.a is None else f" --against {quote_path(shown.a)}"
        yield "" if not more else "one of them in full:"
        yield f"serve-eval show {quote_path(shown.run)}{other} {quote_argument(name)}"


Cells = list[tuple[str, str]]
"""A line of a table: the texts of its columns with their styles. Empty columns are left out."""


def _row(row: SampleRow) -> Cells:
    answered = "-" if row.extracted is None else row.extracted
    return [
        (row.task, ""),
        (_cut(row.id, LONGEST_ID), ""),
        (f"{row.outcome}, cut off" if row.cut_off else row.outcome, choose_style(row.outcome)),
        ("-" if row.expected is None else name_expected(row.task, row.expected), ""),
        (answered if row.failure is None else describe_failure(row.failure), ""),
    ]


def _pair_row(pair: FlippedPair) -> Cells:
    a, b = pair.a, pair.b
    expected = a.expected if b.expected is None else b.expected
    return [
        (b.task, ""),
        (_cut(b.id, LONGEST_ID), ""),
        (f"{describe_outcome(a)} → {describe_outcome(b)}", choose_style(b.outcome)),
        ("-" if expected is None else name_expected(b.task, expected), ""),
        (f"{a.extracted or '-'} → {b.extracted or '-'}", ""),
    ]


def _print_table(rows: Sequence[Cells], console: Console) -> None:
    """Print a table no wider than the console. Its last two columns are cut to fit."""
    if not rows:
        return
    names = ("task", "sample", "outcome", "expected", "answered")
    lines = [[(name, "bold") for name in names], *rows]
    lines = [[(put_on_a_line(text), style) for text, style in line] for line in lines]
    widths = [max(len(line[i][0]) for line in lines) for i in range(len(names))]
    if len({line[0] for line in lines[1:]}) == 1:
        lines, widths = [line[1:] for line in lines], widths[1:]
    left = console.width - sum(width + len(GAP) for width in widths[:-2])
    widths[-2] = min(widths[-2], max(LEAST_TEXT, left // 2 - len(GAP)))
    widths[-1] = min(widths[-1], max(LEAST_TEXT, left - widths[-2] - len(GAP)))
    for line in lines:
        cells = [
            Text(_cut(text, width).ljust(width), style=style)
            for (text, style), width in zip(line, widths, strict=True)
        ]
        printed = Text(GAP).join(cells)
        printed.rstrip()
        console.print(printed, soft_wrap=True)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
