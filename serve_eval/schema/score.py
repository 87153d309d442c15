"""Types that turn answers into values: scores, metrics and their aggregations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from serve_eval.schema.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The metric of a task.

    A score per sample is in [lo, hi] (None: unbounded). The task's value is `scale` times their
    mean, or times the result of its Aggregation.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    lo: float | None = 0.0
    hi: float | None = 1.0
    scale: float = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Parameters of the classic test, in the units of the value (points).

    A task without `num_samples` is planned for a minimum detectable effect of `theta` points; if
    its data then gives another number of samples, that number is used.
    """

    num_samples: int | None = None
    sigma: float = 50.0
    alpha: float = 0.05
    beta: float = 0.2
    theta: float = 3.0


class Outcome(StrEnum):
    """The outcome of an answer.

    All but CORRECT and PARTIAL are scored with the metric's worst value or 0.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    PARTIAL = "partial"
    UNPARSED = "unparsed"
    EMPTY = "empty"
    REASONING_ONLY = "reasoning_only"
    REFUSED = "refused"


class Score(Struct, frozen=True, kw_only=True, gc=False):
    """The score of an answer.

    `answer` is what was extracted (None: nothing); `parts` are named sub-scores, such as one per
    filter; `mode` is the way in which it failed, if the scorer knows that better than a comparison
    of texts. `kept` is for the task's own `remember`.
    """

    value: float
    outcome: Outcome
    answer: str | None = None
    parts: Mapping[str, float] = {}
    mode: str | None = None
    kept: object = None


Scored = Iterable[tuple[Sample, Score]]
"""Samples with their scores. Value, outcome and parts of a score are kept; the answer is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A value that depends on sums over the samples, such as edits divided by words.

    `value` turns the sums of these `parts` of the scores into the value, before the metric's scale.
    It is smooth, and the same for sums that are all twice as large. `limits` has, by part, the most
    by which one answer can change it: 0 for a part that depends on the sample alone (None:
    unknown).
    """

    parts: tuple[str, ...]
    value: Callable[[Sequence[float]], float]
    limits: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The function that turns the scores of a task into its value.

    `of` is a pure function of at least one sample with its score; the metric's scale is applied to
    its result. `name` is its name in the report.

    `monotone`: it reads only the value of a score, and never falls when one rises. Only then do
    missing answers bound the value (Manski). `sums`, if the value depends on sums over the samples,
    is what the paired comparison and its rules need; they refuse any other aggregation but the mean
    by name. What needs a plain mean refuses these as well: an early stop, `power --from`, the drift
    chart. Repeats count as further samples; the variation of a run is then taken from the values of
    the repeats.
    """

    name: str
    of: Callable[[Scored], float]
    monotone: bool = False
    sums: Sums | None = None

    @property
    def paired(self) -> bool:
        """True if two sides can be compared sample by sample."""
        return self is MEAN or self.sums is not None


def _mean(scored: Scored) -> float:
    values = [score.value for _, score in scored]
    return math.fsum(values) / len(values)


MEAN = Aggregation(name="mean", of=_mean, monotone=True)


Secondary = Callable[[Scored], Mapping[str, float]]


def no_secondary(scored: Scored) -> Mapping[str, float]:
    """Return no further values, the default."""
    return {}


Breakdown = Callable[[Iterable[tuple[Sample, float]]], Mapping[str, object]]


def no_breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return no breakdown, the default."""
    return {}
