"""The answer says yes or no: after "answer is", at its beginning, or exactly once."""

from __future__ import annotations

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import grade_value, kind, place, value_of
from serve_eval.scorers._stated import find_stated


def scorer(
    *, yes: tuple[str, ...] = ("yes", "true"), no: tuple[str, ...] = ("no", "false")
) -> Scorer:
    """Return a scorer that gives 1 for the expected one of the two.

    An answer that says both, or neither, is unparsed. The options are the words for them. Raises
    PlanError if one word means both.
    """
    words = {word.casefold(): True for word in yes} | {word.casefold(): False for word in no}
    if (
        not all(word.strip() for word in words)
        or not yes
        or not no
        or len(words) < len(yes) + len(no)
    ):
        raise PlanError(
            "yes_no: `yes` and `no` need different words, such as {yes: [ja], no: [nein]}"
        )

    def read_meant(expected: object) -> bool | None:
        value = value_of(expected)
        return value if isinstance(value, bool) else words.get(str(value).strip().casefold())

    def score(expected: object, response: Response) -> Score:
        said = find_stated(response.text, words)
        if said is None:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        found = (yes if said else no)[0]
        return grade_value(float(said == read_meant(expected)), found, mode="the opposite")

    def problems(expected: object) -> list[str]:
        if read_meant(expected) is not None:
            return []
        value = value_of(expected)
        said = repr(value) if isinstance(value, str) else kind(value)
        return [f"{place(expected)} must be yes or no (one of {', '.join(words)}), not {said}"]

    def answers(expected: object) -> tuple[str, str]:
        right, wrong = (yes, no) if read_meant(expected) else (no, yes)
        return right[0], wrong[0]

    return Scorer(version=2, score=score, answers=answers, problems=problems, scoring="inline")
