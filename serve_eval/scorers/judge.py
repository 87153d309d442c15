"""Other models grade the answer, metric by metric (docs/judges.md).

They are asked after the last answer. This module makes the questions, and the score from the
judgements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from serve_eval.errors import PlanError
from serve_eval.schema import Judgement, Outcome, Question, Response, Sample, Score, Scorer
from serve_eval.scorers import _judge_prompts as prompts
from serve_eval.scorers._expected import grade_value
from serve_eval.scorers._judge_file import JudgeEntry, MetricEntry, panel
from serve_eval.scorers._judge_file import metrics as checked_metrics

JUDGES_APART, ROUNDS_APART = "judges_apart", "rounds_apart"
"""Parts of a score: the spread of the judges, and of the rounds of one judge."""


def scorer(
    *,
    judges: tuple[JudgeEntry, ...] = (),
    metrics: tuple[str | MetricEntry, ...] = ("correctness",),
    rounds: int = 1,
    majority: bool = False,
) -> Scorer:
    """Return a scorer that gives the mean over `metrics` of the judgements.

    Each metric has the mean over the readable judgements of all `judges` in all `rounds`, or with
    `majority` what more than half of them said; a tie counts as half. At least one judge is needed.
    Raises PlanError with what is wrong with the options.
    """
    (asked, wrong_judges), (wanted, wrong_metrics) = panel(judges), checked_metrics(metrics)
    problems = [*wrong_judges, *wrong_metrics]
    if rounds < 1:
        problems.append("judge.rounds: must be 1 or more")
    if rounds > 1 and any(judge.sampling.seed is not None for judge in asked):
        problems.append(
            "judge.rounds: with a sampling.seed every round gives the same; leave one of them out"
        )
    if majority and any(
        isinstance(metric, MetricEntry) and metric.points is not None for metric in metrics
    ):
        problems.append("judge.majority: points have a mean, not a majority; leave it out")
    if problems:
        raise PlanError(problems)

    def questions(sample: Sample, expected: object, response: Response) -> list[Question]:
        texts = prompts.material(sample.prompt, expected, prompts.answer_text(response))
        return [
            Question(judge=judge, metric=metric.name, round=number, prompt=prompt, read=metric.read)
            for metric, prompt in [(metric, metric.ask(texts)) for metric in wanted]
            for judge in asked
            for number in range(1, rounds + 1)
        ]

    def score(expected: object, response: Response) -> Score:
        said = response.judgements
        if not said:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        values = {metric.part: _worth(metric.name, said, majority=majority) for metric in wanted}
        told = ", ".join(f"{part} {value:g}" for part, value in values.items())
        apart = {JUDGES_APART: judges_apart(said)} if len(asked) > 1 else {}
        apart |= {ROUNDS_APART: rounds_apart(said)} if rounds > 1 else {}
        lowest = min(values, key=values.__getitem__)
        return grade_value(
            math.fsum(values.values()) / len(values),
            told,
            {**values, **apart},
            mode=f"low {lowest}",
        )

    def wrong(expected: object) -> list[str]:
        return prompts.list_expected_problems(
            expected, (metric.name for metric in wanted if metric.needs_expected)
        )

    def answers(expected: object) -> tuple[str, str]:
        """Return two texts that a judge should tell apart: no text has a score of its own."""
        return prompts.format_expected(expected) or "This is what you asked for.", "I do not know."

    who = [
        {
            "name": judge.name,
            "model": judge.model,
            "sampling": judge.sampling,
            "extra_body": judge.extra,
        }
        for judge in asked
    ]
    decisive = {"judges": who, "metrics": metrics, "rounds": rounds, "majority": majority}
    return Scorer(
        version=2,
        score=score,
        answers=answers,
        problems=wrong,
        questions=questions,
        scoring="inline",
        # In the form that a reference file gives back.
        decisive=msgspec.json.decode(msgspec.json.encode(decisive)),
    )


def _worth(metric: str, said: Iterable[Judgement], *, majority: bool) -> float:
    values = [one.value for one in said if one.metric == metric and one.value is not None]
    mean = math.fsum(values) / len(values)
    return mean if not majority or mean == 0.5 else float(mean > 0.5)


def judges_apart(said: Sequence[Judgement]) -> float:
    """Return the distance of the highest judge from the lowest, on average over the metrics.

    A judge counts by the mean of its rounds. For yes and no in one round, it is the share of
    metrics on which judges disagree.
    """
    return _mean_spread(
        [list(map(statistics.fmean, judges.values())) for judges in _group(said).values()]
    )


def rounds_apart(said: Sequence[Judgement]) -> float:
    """Return the spread of the rounds of a judge, on average over judges and metrics."""
    return _mean_spread([rounds for judges in _group(said).values() for rounds in judges.values()])


def _group(said: Iterable[Judgement]) -> dict[str, dict[str, list[float]]]:
    """Return the readable judgements by metric and judge."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in said:
        if one.value is not None:
            found.setdefault(one.metric, {}).setdefault(one.judge, []).append(one.value)
    return found


def _mean_spread(groups: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(max(values) - min(values) for values in groups)
