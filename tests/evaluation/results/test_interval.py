"""The interval of a value: Wilson's, Student's t, the jackknife; repeats and missing answers."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from scipy.stats import t

from serve_eval.evaluation.results.sample_table import OUTCOME_CODES, SampleTable
from serve_eval.evaluation.results.task_result import interval
from serve_eval.schema import MEAN, Aggregation, Metric, Outcome
from serve_eval.stats.intervals import wilson
from tests.evaluation.results.small_task import SAMPLES, small_task

SHARE = Metric()
UNBOUNDED = Metric(name="loss", lo=None, hi=None, scale=1.0, higher_is_better=False)
SQUARED = Aggregation(
    name="square", of=lambda scored: statistics.fmean(s.value for _, s in scored) ** 2
)
AVERAGE = Aggregation(
    name="average", of=lambda scored: statistics.fmean(s.value for _, s in scored)
)


def _table(
    values: Sequence[float | None],
    *,
    metric: Metric = SHARE,
    aggregation: Aggregation = MEAN,
    repeats: int = 1,
) -> SampleTable:
    """Return a table with these scores; None has no score."""
    made = SampleTable(small_task(metric, aggregation), SAMPLES[: len(values) // repeats], repeats)
    for i, value in enumerate(values):
        if value is not None:
            made.values[i], made.outcomes[i] = value, OUTCOME_CODES[Outcome.PARTIAL]
            made.scored += 1
    return made


@pytest.mark.parametrize("right", [0, 1, 20, 40])
def test_a_share_has_wilsons_interval_also_at_its_ends(right: int) -> None:
    low, high = interval(_table([1.0] * right + [0.0] * (40 - right))) or (0.0, 0.0)
    assert (low / 100, high / 100) == pytest.approx(wilson(right, 40, 0.05))
    assert low < high


def test_missing_answers_widen_it_to_their_worst_and_their_best() -> None:
    low, high = interval(_table([1.0] * 30 + [None] * 10)) or (0.0, 0.0)
    assert low / 100 == pytest.approx(wilson(30, 40, 0.05)[0])
    assert high / 100 == pytest.approx(wilson(40, 40, 0.05)[1])


def test_repeats_of_a_prompt_are_no_further_prompts() -> None:
    once = interval(_table([1.0, 0.0] * 10))
    assert interval(_table([1.0, 0.0] * 30, repeats=3)) == pytest.approx(once)


def test_another_range_of_scores_is_scaled() -> None:
    signed = Metric(name="signed", lo=-1.0, hi=1.0, scale=1.0)
    low, high = interval(_table([-1.0] * 10 + [1.0] * 30, metric=signed)) or (0.0, 0.0)
    ends = wilson(30, 40, 0.05)
    assert (low, high) == pytest.approx((2 * ends[0] - 1, 2 * ends[1] - 1))


def test_an_unbounded_mean_has_students_interval_and_the_jackknife_agrees() -> None:
    values = [random.Random(1).gauss(3.0, 1.0) for _ in range(20)]
    half = t.ppf(0.975, 19) * statistics.stdev(values) / math.sqrt(20)
    ends = statistics.fmean(values) - half, statistics.fmean(values) + half
    assert interval(_table(values, metric=UNBOUNDED)) == pytest.approx(ends)
    # One prompt per group: the jackknife of a mean is the standard error of the mean.
    again = _table(values, metric=UNBOUNDED, aggregation=AVERAGE)
    assert interval(again) == pytest.approx(ends)


def test_the_jackknife_of_another_aggregation_covers_the_true_value() -> None:
    rng, hits = random.Random(2), 0
    for _ in range(200):
        values = [rng.gauss(3.0, 1.0) for _ in range(100)]
        low, high = interval(_table(values, metric=UNBOUNDED, aggregation=SQUARED)) or (0, 0)
        hits += low <= 9.0 <= high
    assert 178 <= hits <= 199  # 95 % of 200; outside by chance less than once in 100,000


@pytest.mark.parametrize(
    "table",
    [
        _table([None, None]),
        _table([1.0, None], metric=UNBOUNDED),
        _table([1.0, None], aggregation=SQUARED),
        _table([1.0], metric=UNBOUNDED),
        _table([1.0], aggregation=SQUARED),
    ],
)
def test_what_cannot_be_known_has_no_interval(table: SampleTable) -> None:
    assert interval(table) is None
