"""Near: the last number of an answer, right when it is close enough to the expected one."""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval_example._numbers import last_number


def scorer(*, tolerance: float = 0.0) -> Scorer:
    """The scorer with its options."""

    def score(expected: object, response: Response) -> Score:
        said, wanted = last_number(response.text), _wanted(expected)
        if said is None or wanted is None:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        right = abs(said - wanted) <= tolerance
        return Score(
            value=float(right),
            outcome=Outcome.CORRECT if right else Outcome.WRONG,
            answer=f"{said:g}",
        )

    def answers(expected: object) -> tuple[str, str]:
        wanted = _wanted(expected) or 0.0
        return f"{wanted:g}", f"{wanted + 2 * tolerance + 1:g}"

    return Scorer(
        version=1,
        score=score,
        answers=answers,
        problems=lambda expected: ["expected a number"] if _wanted(expected) is None else [],
    )


def _wanted(expected: object) -> float | None:
    """The number that a case expects, as a bare value or under `answer`; None for what is none."""
    value = expected.get("answer") if isinstance(expected, Mapping) else expected
    return float(value) if isinstance(value, int | float) else None
