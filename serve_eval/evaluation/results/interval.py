"""Compute the interval of a task's value, for the population that its prompts are drawn from.

* A mean of bounded scores: Wilson's interval (`stats/wilson.py`). Repeats of a prompt are no
  further prompts: with them n is the number of answers that would be as informative if each were
  to a prompt of its own. If prompts share groups, such as passages, n is the effective number of
  prompts (`stats/clusters.py`), and repeats count only by the prompts' means.
* A mean of unbounded scores: Student's t.
* Any other aggregation: the delete-a-group jackknife with Student's t (Kott 2001, "The
  delete-a-group jackknife"). The groups are every 20th prompt. Those of a value that depends on
  sums are what its samples share, such as speakers, or else single prompts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from itertools import chain

from serve_eval.evaluation.results.sample_table import SampleTable
from serve_eval.schema import MEAN, Sample, Score, Sums
from serve_eval.stats.clusters import cluster_keys, effective_size, number_keys
from serve_eval.stats.wilson import INTERVAL_ALPHA, wilson, wilson_of_repeats

GROUPS = 20
"""Number of groups of the jackknife, if there are at least as many prompts."""


def interval(table: SampleTable) -> tuple[float, float] | None:
    """Return the interval of the value in points with 95 % confidence.

    Missing scores count as worst at the lower end and as best at the upper end. None if a score is
    missing from an unbounded range or from an aggregation, or if a single prompt cannot show how
    much prompts vary.
    """
    if not table.scored:
        return None
    metric = table.task.metric
    if table.task.aggregation is MEAN and metric.lo is not None and metric.hi is not None:
        ends = _bound_mean(table, metric.lo, metric.hi)
    elif table.scored < len(table.samples):
        return None
    elif table.task.aggregation is MEAN:
        means = [math.fsum(scores) / table.repeats for scores in zip(*table.runs(), strict=True)]
        ends = _around(math.fsum(means) / len(means), _standard_error(means), len(means) - 1)
    elif (sums := table.task.aggregation.sums) is not None:
        ends = _jackknife_sums(table, sums)
    else:
        ends = _jackknife(table)
    if ends is None:
        return None
    low, high = ends
    low = low if metric.lo is None else max(low, metric.lo)
    high = high if metric.hi is None else min(high, metric.hi)
    return metric.scale * low, metric.scale * high


def _bound_mean(table: SampleTable, lo: float, hi: float) -> tuple[float, float] | None:
    span, prompts = hi - lo, len(table.samples) // table.repeats
    keys = cluster_keys([table.samples[i].group for i in range(prompts)])
    if table.repeats > 1 and keys is None:
        return _bound_repeats(table, lo, hi)
    known = math.fsum(table.values[i] - lo for i in table.list_scored_places()) / span
    missing = len(table.samples) - table.scored
    size = prompts if keys is None else _find_effective_size(table, keys)
    shares = [total / (table.repeats * prompts) for total in (known, known + missing)]
    low, _ = wilson(size * shares[0], size, INTERVAL_ALPHA)
    _, high = wilson(size * shares[1], size, INTERVAL_ALPHA)
    return lo + span * low, lo + span * high


def _find_effective_size(table: SampleTable, keys: Sequence[Hashable]) -> float:
    """Return how many independent prompts tell as much about the mean as those of the task.

    `keys` name the group of each prompt.
    """
    prompts = len(keys)
    scores: dict[int, list[float]] = {}
    for i in table.list_scored_places():
        scores.setdefault(i % prompts, []).append(table.values[i])
    means = [math.fsum(one) / len(one) for one in scores.values()]
    return prompts * effective_size(means, number_keys([keys[i] for i in scores])) / len(means)


def _bound_repeats(table: SampleTable, lo: float, hi: float) -> tuple[float, float]:
    """Return the interval from the mean of each prompt, with missing answers at both ends."""
    import numpy

    runs = (numpy.asarray(table.runs()) - lo) / (hi - lo)
    gone = numpy.isnan(runs)
    low, high = (
        wilson_of_repeats(numpy.where(gone, end, runs).mean(axis=0), table.repeats, INTERVAL_ALPHA)
        for end in (0.0, 1.0)
    )
    return lo + (hi - lo) * low[0], lo + (hi - lo) * high[1]


def _jackknife(table: SampleTable) -> tuple[float, float] | None:
    """Return the interval from the values without one group of prompts each."""
    of, prompts = table.task.aggregation.of, len(table.samples) // table.repeats
    groups: list[list[tuple[Sample, Score]]] = [[] for _ in range(min(GROUPS, prompts))]
    if (g := len(groups)) < 2:
        return None
    for i, pair in enumerate(table.pairs(range(len(table.samples)))):
        groups[i % prompts % g].append(pair)
    without = [
        float(of(list(chain.from_iterable((*groups[:i], *groups[i + 1 :]))))) for i in range(g)
    ]
    return _around(float(of(list(chain.from_iterable(groups)))), _jackknife_error(without), g - 1)


def _jackknife_sums(table: SampleTable, sums: Sums) -> tuple[float, float] | None:
    """Return the interval from the values without one group of samples each.

    The sum of each part is taken once per group, and a value without a group is that of the rest.
    """
    prompts = len(table.samples) // table.repeats
    groups: dict[object, list[float]] = {}
    total = [0.0] * len(sums.parts)
    for i in range(len(table.samples)):
        sample, place = table.samples[i], i % prompts
        group = groups.setdefault(sample.group or place, [0.0] * len(sums.parts))
        for k, part in enumerate(sums.parts):
            group[k] += table.parts[part][i]
            total[k] += table.parts[part][i]
    if len(groups) < 2:
        return None
    without = [
        sums.value([whole - one for whole, one in zip(total, group, strict=True)])
        for group in groups.values()
    ]
    return _around(sums.value(total), _jackknife_error(without), len(groups) - 1)


def _jackknife_error(without: Sequence[float]) -> float:
    g = len(without)
    return math.sqrt((g - 1) ** 2 / g * statistics.variance(without))


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _around(value: float, error: float, df: int) -> tuple[float, float] | None:
    """Return the interval by Student's t, or None if there is no finite one."""
    from scipy.stats import t

    half = float(t.ppf(1.0 - INTERVAL_ALPHA / 2.0, df)) * error if df > 0 else math.nan
    return (value - half, value + half) if math.isfinite(half) else None
