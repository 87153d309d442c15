"""Say what the check of a task found, in an entry of a list. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.report.document.listing import ListEntry
from serve_eval.workflows.gold.check import GoldCheck, GoldRow, Side

FIRST, MOST = 3, 40
"""Rows of each kind that an entry names, and lines of them that -v shows."""
_SIDES: dict[Side, str] = {
    "gold": "gold answers without full marks",
    "zero": "wrong answers with a score",
}


def make_entry(found: GoldCheck) -> ListEntry:
    """Return the entry of a task: its counts, and the first rows that are not as they should be."""
    return ListEntry(
        name=f"task {found.task}",
        text="; ".join(_say(found)),
        more=[f"{row.id}: {_say_row(row)}" for row in found.rows[:MOST]],
        wrong=not found.passed,
        keep=True,
    )


def _say(found: GoldCheck) -> Iterator[str]:
    made = " (made up)" if found.no_gold else ""
    scores = (
        "score better than the wrong ones"
        if found.relative
        else f"score full marks, {found.zero:,} wrong ones nothing"
    )
    yield (
        f"{found.samples:,} samples, {found.gold:,} gold answers{made} {scores},"
        f" {found.wall_s:.1f} s"
    )
    for side, words in _SIDES.items():
        if rows := [row for row in found.rows if row.side == side]:
            named = ", ".join(f"{row.id} ({_say_row(row)})" for row in rows[:FIRST])
            more = f", and {len(rows) - FIRST:,} more" if len(rows) > FIRST else ""
            yield f"{words}: {len(rows):,}, such as {named}{more}"
    yield from found.errors
    if found.no_gold:
        yield f"the data has no gold answers: {found.no_gold}"
    if found.shared:
        yield (
            f"{found.shared:,} more samples ask the same as another one with other answers, and"
            " are not counted"
        )
    if not found.samples:
        yield "no sample was checked"


def _say_row(row: GoldRow) -> str:
    """Return the score of a row in a few words."""
    if row.value is None:
        return row.outcome
    cut = ", cut at max_tokens" if row.cut else ""
    read = "" if row.answer is None else f", read as {row.answer[:40]!r}"
    return f"{row.outcome} {row.value:g}{cut}{read}"
