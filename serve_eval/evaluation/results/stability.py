"""Measure how well the repeats of a task agree."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

from serve_eval.schema import MEAN, Sample, Stability, Task


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
    right or wrong, or discrete: see `stats.repeats`. A value that is not a mean of the scores has
    no vote, and its spread is that of the values of the repeats.
    """
    if scores.repeats < 2:
        return None
    from serve_eval.errors import ServeEvalError
    from serve_eval.stats.instability import instability
    from serve_eval.stats.repeats import majority, pass_at

    metric = scores.task.metric
    try:
        told = instability(scores.runs())
    except ServeEvalError:
        return None
    best = metric.hi if metric.higher_is_better else metric.lo
    columns = [
        column for column in zip(*scores.runs(), strict=True) if not any(map(math.isnan, column))
    ]
    right = [sum(value == best for value in column) for column in columns]
    ranged = metric.lo is not None and metric.hi is not None
    numbers = range(1, scores.repeats + 1) if ranged else ()
    plain = scores.task.aggregation is MEAN
    spread = abs(metric.scale) * (told.variance * scores.repeats / len(scores.samples)) ** 0.5
    vote = majority(scores.votes()) if plain else None
    return Stability(
        repeats=scores.repeats,
        prompts=told.prompts,
        sd=spread if plain else statistics.stdev(scores.run_values()),
        flip_rate=told.flip_rate,
        mixed=told.mixed,
        cochran_q=told.cochran_q,
        df=told.df,
        p=told.p,
        pass_at={str(k): 100.0 * pass_at(right, scores.repeats, k) for k in numbers},
        majority=None if vote is None else metric.scale * vote,
        identical=scores.count_identical(),
        seed=scores.task.sampling.seed,
        temperature=scores.task.sampling.temperature,
    )
