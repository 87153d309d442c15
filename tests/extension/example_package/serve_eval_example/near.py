"""Near: the last number of an answer, right when it is close enough to the expected one."""

from __future__ import annotations

from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval_example._numbers import last_number


def scorer(*, tolerance: float = 0.0) -> Scorer:
    """The scorer with its options."""

    def score(expected: object, response: Response) -> Score:
        said = last_number(response.text)
        if said is None:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        right = abs(said - float(str(expected))) <= tolerance
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG, answer=f"{said:g}")

    return Scorer(
        version=1,
        score=score,
        answers=lambda expected: (str(expected), str(float(str(expected)) + 2 * tolerance + 1)),
        problems=lambda expected: [] if isinstance(expected, int | float) else ["expected a number"],
    )
