"""Write the rows of a smoke test for a terminal: broken between words, commands to be pasted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from serve_eval.cli._wrapping import wrap

if TYPE_CHECKING:
    from serve_eval.checks.row import CheckRow
    from serve_eval.workflows.smoke.smoke import Smoke

SHOWN = 2000
"""Most characters of a curl line in the table; --json and --junit have all of it."""
MARGIN = 12
"""Characters before the name of a check."""
_COLOURS: Final = {"PASS": "green", "FAIL": "red"}


def write_row(row: CheckRow, *, verbose: bool, width: int | None) -> str:
    """Return a row that is not folded: FAIL with its request, others with it if `verbose`."""
    from serve_eval.checks.row import CheckOutcome
    from serve_eval.report.text import clean

    told = clean(" ".join(row.told.split()))
    mark = " (tests the model)" if row.model else ""
    time = f"{row.time_s:>7.2f} s" if verbose else ""
    name = f"{row.name:<{25 if verbose else 20}}{time}"
    lines = wrap(f"{name}  {told}{mark}", width, first=MARGIN, others=MARGIN)
    text = f"{_colour(row.outcome)} {lines}\n"
    if row.curl is None or not (verbose or row.outcome is CheckOutcome.FAIL):
        return text
    if len(row.curl) > SHOWN:
        line = f"(curl line of {len(row.curl)} characters: see --json or --junit)"
        return f"{text}    {wrap(line, width, first=4, others=4)}\n"
    return f"{text}    {fold_command(clean(row.curl), width)}\n"


def _colour(outcome: str) -> str:
    from serve_eval.cli._streams import is_terminal

    padded = f"{outcome:<{MARGIN - 1}}"
    return (
        typer.style(padded, fg=_COLOURS.get(outcome, "yellow"), bold=True)
        if is_terminal()
        else padded
    )


def write_end(done: Smoke, *, verbose: bool, width: int | None) -> Iterator[str]:
    """Yield the lines below the rows: what was folded, the counts, and what to do."""
    from serve_eval.checks.row import CheckOutcome
    from serve_eval.workflows.smoke.smoke import summary

    if (passed := done.counts[CheckOutcome.PASS]) and not verbose:
        yield f"{_colour('PASS')} {passed} check{'' if passed == 1 else 's'} (-v lists them)"
    before = [] if done.known is None else done.known.unsupported
    if before and not verbose:
        yield f"{_colour('UNSUPPORTED')} {len(before)} as before (-v lists them)"
    for line in summary(done):
        yield wrap(line, width, first=0, others=2)


def fold_command(command: str, width: int | None) -> str:
    """Return a shell command in lines of about `width` characters that a shell reads as before.

    A line ends with a backslash: between two words, or within single quotes, which are closed
    before it and opened again on the next line.
    """
    if width is None:
        return command
    lines, line, ending = list[str](), "    ", ""
    for piece, quote in _list_pieces(command, width):
        if line.strip() and len(line) + len(piece) > width - len("'\\"):
            lines.append(f"{line}{ending}\\")
            line = ending or "    "
        line, ending = line + piece, quote
    return "\n".join([*lines, line]).strip()


def _list_pieces(command: str, width: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a command after which a line may end, each with the quote open there.

    They are its words, and the parts of a word in single quotes that is too long for a line.
    """
    word, pieces, quote = 0, list[tuple[str, str]](), ""
    start = 0
    for place, character in enumerate(command, 1):
        if character in ("'", '"') and quote in ("", character):
            quote = "" if quote else character
        last = place == len(command)
        if not last and (character != " " or quote == '"'):
            continue
        pieces.append((command[start:place], quote))
        start = place
        if last or not quote:
            whole = place - word <= width // 2
            yield from [(command[word:place], quote)] if whole else pieces
            word, pieces = place, []
