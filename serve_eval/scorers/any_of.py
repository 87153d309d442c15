"""The answer is any of several accepted ones, each scored by another scorer."""

from __future__ import annotations

from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import find_wrong, kind, place, place_items, value_of


def scorer(*, scorer: str | dict[str, dict[str, object]] = "exact") -> Scorer:
    """Return a scorer that gives the best score of any expected answer.

    `scorer` scores each of them: a name, or a mapping of a name to options. Raises PlanError for an
    unknown one and for one that runs code or asks judges.
    """
    name, options = (scorer, {}) if isinstance(scorer, str) else _only(scorer)
    make = registry.load(registry.SCORERS, name)
    by: Scorer = make(**registry.check_options(make, options, f"any_of.scorer.{name}"))
    if by.program is not None or by.questions is not None:
        does = "runs the answer" if by.questions is None else "asks judges about the answer"
        raise PlanError(f"any_of: {name} {does}, which works for one expectation only")

    def list_accepted(expected: object) -> list[object]:
        value = value_of(expected)
        return list(value) if isinstance(value, list | tuple) else []

    def score(expected: object, response: Response) -> Score:
        scores = [by.score(one, response) for one in list_accepted(expected)]
        return max(scores, key=lambda score: (score.value, score.outcome is not Outcome.UNPARSED))

    def problems(expected: object) -> list[str]:
        if not list_accepted(expected):
            told = (
                "must be a list of accepted answers, such as [Paris, Lutetia], not"
                f" {kind(value_of(expected))}"
            )
            return [f"{place(expected)} {told}"]
        return [
            f"{where}{told.removeprefix('expected')}"
            for where, one in place_items(expected)
            for told in by.problems(one)
        ]

    def answers(expected: object) -> tuple[str, str]:
        both = [by.answers(one) for one in list_accepted(expected)]
        wrong = find_wrong(score, expected, *(wrong for _, wrong in both))
        return both[0][0], wrong

    inner = options if by.decisive is None else by.decisive
    return Scorer(
        version=1,
        score=score,
        answers=answers,
        problems=problems,
        requires=by.requires,
        scoring=by.scoring,
        decisive={"scorer": name, "options": inner, "version": by.version},
    )


def _only(named: dict[str, dict[str, object]]) -> tuple[str, dict[str, object]]:
    if len(named) != 1:
        raise PlanError(
            "any_of: `scorer` must be one name, such as numeric, or {numeric: {absolute: 0.01}}"
        )
    return next(iter(named.items()))
