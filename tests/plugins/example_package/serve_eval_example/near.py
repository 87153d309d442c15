"""Near: the last number of an answer is right if it is close enough to the expected number."""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval_example._numbers import last_number


def scorer(*, tolerance: float = 0.0) -> Scorer:
    """Return the scorer with its options."""

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
    """Return the number that a case expects, bare or under `answer`; None if it is not a number."""
    value = expected.get("answer") if isinstance(expected, Mapping) else expected
    return float(value) if isinstance(value, int | float) else None
