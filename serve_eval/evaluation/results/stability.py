"""Measure how well the repeats of a task agree."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from serve_eval.schema import MEAN, Sample, Stability, Task

if TYPE_CHECKING:
    from serve_eval.stats.repeats import PassAt


class RepeatedScores(Protocol):
    """Scores of a task whose prompts were asked several times. `runs` has a row for each repeat."""

    task: Task
    samples: Sequence[Sample]
    repeats: int

    def runs(self) -> Sequence[array[float]]: ...

    def run_values(self) -> Sequence[float]: ...

    def count_identical(self) -> int: ...

    def votes(self) -> Iterable[Sequence[tuple[int | None, float]]]: ...


def stability(scores: RepeatedScores) -> Stability | None:
    """Return how well the repeats agree, or None without repeats.

    Also returns None if no prompt was scored each time. pass@k and the vote need answers that are
    right or wrong, or discrete: see `stats.repeats`. They are over all prompts; a missing answer
    widens the bounds of pass@k and has no vote. A value that is not a mean of the scores has no
    vote, and its spread is that of the values of the repeats.
    """
    if scores.repeats < 2:
        return None
    from serve_eval.errors import ServeEvalError
    from serve_eval.stats.instability import instability
    from serve_eval.stats.repeats import majority, standard_error

    metric, runs = scores.task.metric, scores.runs()
    try:
        told = instability(runs)
    except ServeEvalError:
        return None
    known = [[one for one in column if not math.isnan(one)] for column in zip(*runs, strict=True)]
    plain = scores.task.aggregation is MEAN
    spread = abs(metric.scale) * (told.variance * scores.repeats / len(scores.samples)) ** 0.5
    vote = majority(scores.votes()) if plain else None
    error = standard_error([math.fsum(column) / len(column) for column in known if column])
    passed = _pass_at(scores, known)
    return Stability(
        repeats=scores.repeats,
        prompts=told.prompts,
        sd=spread if plain else statistics.stdev(scores.run_values()),
        flip_rate=told.flip_rate,
        mixed=told.mixed,
        cochran_q=told.cochran_q,
        df=told.df,
        p=told.p,
        pass_at={k: 100.0 * one.value for k, one in passed.items()},
        majority=None if vote is None else metric.scale * vote.value,
        identical=scores.count_identical(),
        seed=scores.task.sampling.seed,
        temperature=scores.task.sampling.temperature,
        se=None if error is None or not plain else abs(metric.scale) * error,
        se_runs=spread / math.sqrt(scores.repeats) if plain else None,
        pass_bounds={k: (100.0 * one.low, 100.0 * one.high) for k, one in passed.items()},
        answered=sum(map(len, known)),
        asked=len(scores.samples),
        voted=None if vote is None else vote.prompts,
        tied=None if vote is None else vote.tied,
    )


def _pass_at(scores: RepeatedScores, known: Sequence[Sequence[float]]) -> dict[str, PassAt]:
    """Return pass@k by k; none for scores without a range."""
    from serve_eval.stats.repeats import pass_at

    metric = scores.task.metric
    if metric.lo is None or metric.hi is None:
        return {}
    best = metric.hi if metric.higher_is_better else metric.lo
    right = [sum(value == best for value in column) for column in known]
    answers = [len(column) for column in known]
    return {
        str(k): pass_at(right, scores.repeats, k, answers) for k in range(1, scores.repeats + 1)
    }
