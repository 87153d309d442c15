"""Pick one answer of a run that shows what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from serve_eval.evaluation.storage.records.scores import ScoreRecord
from serve_eval.schema import Outcome

SHORT = 24
"""Characters of an answer that fits in a line with another one."""
NOT_RIGHT = {
    Outcome.WRONG: 0,
    Outcome.PARTIAL: 1,
    Outcome.UNPARSED: 2,
    Outcome.REFUSED: 3,
    Outcome.REASONING_ONLY: 4,
    Outcome.EMPTY: 5,
}
"""The outcomes of answers that are not right, the most telling first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongExample:
    """An answer that is not right. `answered` is None if nothing could be extracted."""

    id: str
    outcome: Outcome
    answered: str | None
    expected: str


def pick_example(scores: Iterable[ScoreRecord]) -> WrongExample | None:
    """Return the most telling answer that is not right, or None if all are right.

    A wrong answer comes before an unreadable one, a whole answer before one that was cut, short
    texts before long ones, and then the first id counts.
    """
    bad = (one for one in scores if one.outcome in NOT_RIGHT)
    found = min(bad, key=_rank, default=None)
    if found is None:
        return None
    return WrongExample(
        id=found.id,
        outcome=found.outcome,
        answered=found.answer,
        expected=name_target(found.target),
    )


def name_target(target: str) -> str:
    """Return the answer in a target, which may be a worked solution that ends in `#### ANSWER`."""
    return target.rpartition("####")[2].strip()


def _rank(one: ScoreRecord) -> tuple[object, ...]:
    long = max(len(one.answer or ""), len(name_target(one.target))) > SHORT
    return NOT_RIGHT[one.outcome], one.truncated, long, order_ids(one.id)


def order_ids(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key of an id, with its numbers by value: test-9 comes before test-10."""
    pieces = re.split(r"([0-9]{1,18})", name)
    return tuple((int(one), "") if i % 2 else (-1, one) for i, one in enumerate(pieces))
