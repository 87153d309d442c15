"""Write a result as Markdown, for the summary of a CI job or a comment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState
from serve_eval.report.text import clean

MOST_CASES = 20
"""Cases that are explained below the table at most."""
MOST_CHARACTERS = 600
"""Characters of a message at most, so that a summary stays below the limits of CI systems."""
_LINE_MARKUP = re.compile(r"([\\`*{}<>|~@$&#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:]))")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~@!$&])")


def write_markdown(result: CiResult) -> str:
    """Return the line of the result, a table, what did not pass and why, and next commands."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: CiResult) -> Iterator[str]:
    yield escape_line(result.said)
    yield ""
    yield f"### {escape_text(result.outcome)}: {escape_text(result.title)}"
    yield ""
    if result.table.rows:
        yield _write_row([escape_text(one) for one in result.table.columns])
        yield _write_row(["---"] * len(result.table.columns))
        for verdict, *cells in result.table.rows:
            yield _write_row([f"**{escape_text(verdict)}**", *map(escape_text, cells)])
        yield ""
    if result.grid:
        yield from (*result.grid, "")
    bad = [
        case
        for case in result.cases
        if case.state is not CiState.PASSED and case.said != result.said and not case.in_table
    ]
    yield from map(_explain, bad[:MOST_CASES])
    if len(bad) > MOST_CASES:
        yield f"* and {len(bad) - MOST_CASES} more in junit.xml"
    for case in result.cases:
        name = escape_text(case.name)
        yield from (f"* **{name}**: warning: {escape_text(one)}" for one in case.remarks)
    yield from (f"* {escape_text(note)}" for note in result.notes)
    if result.commands:
        yield from ("", *write_code_block(result.commands))


def write_code_block(commands: Sequence[str]) -> list[str]:
    """Return a block of code with these commands, whose fence is longer than any within it."""
    shown = [clean(command) for command in commands]
    longest = max((len(run) for one in shown for run in re.findall("`+", one)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *shown, fence]


def _explain(case: CiCase) -> str:
    return f"* **{escape_text(case.name)}**: {escape_text(case.said)}"


def _write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_line(text: str) -> str:
    """Return a text on one line that Markdown shows as it is.

    Marks that change nothing where they stand are not escaped, so that most lines are the same in
    the source: an underscore within a word, a bracket that begins no link.
    """
    return _LINE_MARKUP.sub(r"\\\1", " ".join(clean(text).split()))


def escape_text(text: str) -> str:
    """Return a text on one line that Markdown shows as it is, shortened at its end."""
    flat = " ".join(clean(text).split())
    if len(flat) > MOST_CHARACTERS:
        flat = f"{flat[: MOST_CHARACTERS - 3]}..."
    return _MARKUP.sub(r"\\\1", flat)
