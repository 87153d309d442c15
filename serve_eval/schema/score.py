"""Turn answers into values: scores, metrics and their aggregations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from serve_eval.schema.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A score per sample lies in [lo, hi] (None: unbounded); the task's value is `scale` times
    their mean, or times what else its Aggregation makes of them.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    lo: float | None = 0.0
    hi: float | None = 1.0
    scale: float = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Parameters of the classic test, in the units of the value (points). A task that registers no
    `num_samples` is planned for a minimum detectable effect of `theta` points; where its data then
    gives another number of samples, that one counts.
    """

    num_samples: int | None = None
    sigma: float = 50.0
    alpha: float = 0.05
    beta: float = 0.2
    theta: float = 3.0


class Outcome(StrEnum):
    """What an answer was worth. All but CORRECT and PARTIAL are scored with the metric's worst
    value or 0.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    PARTIAL = "partial"
    UNPARSED = "unparsed"
    EMPTY = "empty"
    REASONING_ONLY = "reasoning_only"
    REFUSED = "refused"


class Score(Struct, frozen=True, kw_only=True, gc=False):
    """`answer` is what was extracted (None: nothing could be); `parts` are named sub-scores, such
    as one per filter; `mode` is in which way it failed, where the scorer knows that better than a
    comparison of texts could tell. `kept` is for the task's own `remember`.
    """

    value: float
    outcome: Outcome
    answer: str | None = None
    parts: Mapping[str, float] = {}
    mode: str | None = None
    kept: object = None


Scored = Iterable[tuple[Sample, Score]]
"""Samples with their scores. Of a score the value, the outcome and the parts are kept, the answer
is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How the scores of a task become its value. `of` is a pure function of at least one sample
    with its score, whose result the metric's scale is applied to; `name` is what the report calls
    it.

    `monotone`: it reads nothing of a score but the value, and never falls when one rises. Only then
    do missing answers bound the value (Manski). What needs a plain mean refuses anything else by
    name: an early stop, the paired comparison and its rules, `power --from`, the drift chart.
    Repeats are so many more samples; how much a run varies is then taken from the values of the
    repeats.
    """

    name: str
    of: Callable[[Scored], float]
    monotone: bool = False


def _mean(scored: Scored) -> float:
    values = [score.value for _, score in scored]
    return math.fsum(values) / len(values)


MEAN = Aggregation(name="mean", of=_mean, monotone=True)


Secondary = Callable[[Scored], Mapping[str, float]]


def no_secondary(scored: Scored) -> Mapping[str, float]:
    """The default of the values beside the value: none."""
    return {}


Breakdown = Callable[[Iterable[tuple[Sample, float]]], Mapping[str, object]]


def no_breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """The default breakdown: none."""
    return {}
