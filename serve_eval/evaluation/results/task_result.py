"""Sum up the samples of a task: counts, value, interval, and the figures of the task's functions.

* A mean of bounded scores: Wilson's interval (`stats/intervals.py`). Repeats of a prompt are no
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
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.results.sample_table import (
    CUT_BY_STOP,
    CUT_BY_WINDOW,
    CUT_FLAGS,
    FAILURE_CODES,
    LOOPING,
    OUTCOME_CODES,
    REPAIRED,
    RESTARTED,
    STOPPED_IN_REASONING,
    TRUNCATED,
    SampleTable,
    stability,
)
from serve_eval.processes.forkserver import describe_error
from serve_eval.schema import MEAN, Outcome, Sample, Score, ScorerError, Sums, TaskResult
from serve_eval.stats.clusters import cluster_keys, effective_size, number_keys
from serve_eval.stats.intervals import INTERVAL_ALPHA, bound_missing, wilson, wilson_of_repeats

T = TypeVar("T")


def task_result(
    table: SampleTable,
    modes: Mapping[str, int],
    errors: tuple[ScorerError, ...],
    *,
    spared: bool,
    unlisted: Mapping[str, int],
) -> TaskResult:
    """Return counts, value and bounds, which do not depend on the order of the answers.

    A sample without an answer counts as failed. If an early stop `spared` samples, those not asked
    and those given up do not count.
    """
    metric, planned, n = table.task.metric, len(table.samples), table.scored
    aggregation, hooks = table.task.aggregation, _Hooks()
    outcomes, failures = Counter(table.outcomes), Counter(table.failures)
    flags = Counter(table.flags)
    total = math.fsum(table.values[i] for i in table.list_scored_places())
    scored = ((table.samples[i], table.values[i]) for i in table.list_scored_places())
    value = None
    if n:
        plain = aggregation is MEAN
        found = total / n if plain else hooks.call("aggregation", partial(_aggregate, table), None)
        value = None if found is None else metric.scale * found
    unknown = spared or (n and value is None)
    bounds = (
        None if unknown else hooks.call("aggregation", lambda: _bounds(table, total, value), None)
    )
    doubted = table.list_doubted()
    wider = (
        None if unknown or not doubted else hooks.call("aggregation", lambda: _widen(table), None)
    )
    cut = {
        str(kind): number
        for kind, flag in CUT_FLAGS.items()
        if (number := _count_flagged(flags, flag))
    }
    cut_value, cut_bounds = (None, None) if unknown or not cut else _judge_cuts_right(table)
    breakdown: Mapping[str, object] = {}
    secondary: Mapping[str, float] = {}
    if n:
        breakdown = hooks.call("breakdown", lambda: table.task.breakdown(scored), breakdown)
        secondary = hooks.call(
            "secondary",
            lambda: table.task.secondary(table.pairs(table.list_scored_places())),
            secondary,
        )
    stable = None if spared else hooks.call("aggregation", lambda: stability(table), None)
    summed = () if aggregation.sums is None else aggregation.sums.parts
    return TaskResult(
        task=table.task.name,
        metric=metric,
        planned=planned,
        scored=n,
        failed=table.failed if spared else planned - n,
        spared=planned - n - table.failed if spared else 0,
        truncated=_count_flagged(flags, TRUNCATED),
        stopped_in_reasoning=_count_flagged(flags, STOPPED_IN_REASONING),
        outcomes={
            str(key): count for key, code in OUTCOME_CODES.items() if (count := outcomes[code])
        },
        failures={
            str(key): count for key, code in FAILURE_CODES.items() if (count := failures[code])
        },
        value=value,
        bounds=bounds,
        parts={
            name: metric.scale * math.fsum(part[i] for i in table.list_scored_places()) / n
            for name, part in sorted(table.parts.items())
            if n and name not in summed and name not in secondary
        },
        breakdown=breakdown,
        stability=stable,
        aggregation=aggregation.name,
        secondary=secondary,
        modes=dict(
            sorted(((m, n) for m, n in modes.items() if n), key=lambda item: (-item[1], item[0]))
        ),
        scorer_errors=errors,
        interval=None if unknown else hooks.call("aggregation", lambda: interval(table), None),
        hook_errors=tuple(hooks.errors),
        repaired=sum(bool(table.flags[i] & REPAIRED) for i in doubted),
        restarted=sum(table.flags[i] & (REPAIRED | RESTARTED) == RESTARTED for i in doubted),
        unlisted=sum(not table.flags[i] & (REPAIRED | RESTARTED) for i in doubted),
        doubted_bounds=wider,
        looping=_count_flagged(flags, LOOPING),
        unlisted_finishes=unlisted,
        cut=cut,
        cut_value=cut_value,
        cut_bounds=cut_bounds,
        longest_whole=max(
            (
                table.lengths[i]
                for i in table.list_scored_places()
                if not table.flags[i] & (TRUNCATED | CUT_BY_STOP)
            ),
            default=None,
        ),
        window_tokens=max(
            (table.lengths[i] for i in table.list_cut() if table.flags[i] & CUT_BY_WINDOW),
            default=None,
        ),
    )


def _aggregate(table: SampleTable) -> float:
    value = float(table.task.aggregation.of(table.pairs(table.list_scored_places())))
    if not math.isfinite(value):
        raise ServeEvalError(f"the {table.task.aggregation.name} of the scores is {value}")
    return value


def _count_flagged(flags: Counter[int], flag: int) -> int:
    return sum(count for one, count in flags.items() if one & flag)


def _bounds(table: SampleTable, total: float, value: float | None) -> tuple[float, float] | None:
    """Return the lowest and the highest possible value in points.

    Return None if scores are missing and the metric is unbounded or the aggregation is not
    monotone.
    """
    metric, planned, aggregation = table.task.metric, len(table.samples), table.task.aggregation
    lo, hi = metric.lo, metric.hi
    if table.scored < planned and (lo is None or hi is None or not aggregation.monotone):
        return None
    if aggregation is not MEAN and value is not None and table.scored == planned:
        return value, value
    if aggregation is not MEAN:
        assert lo is not None
        assert hi is not None
        low, high = (aggregation.of(_complete(table, worst)) for worst in (lo, hi))
    else:
        low, high = bound_missing(total, table.scored, planned, lo or 0.0, hi or 0.0)
    return metric.scale * low, metric.scale * high


def _judge_cuts_right(
    table: SampleTable,
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the value and its bounds if the answers that were cut off were right."""
    right = table.with_cuts_right()
    if right is None or not right.scored:
        return None, None
    total = math.fsum(right.values[i] for i in right.list_scored_places())
    value = table.task.metric.scale * total / right.scored
    return value, _bounds(right, total, value)


def _widen(table: SampleTable) -> tuple[float, float] | None:
    """Return the bounds with the samples whose first answers are unknown as missing ones."""
    known = table.without_doubted()
    return _bounds(known, math.fsum(known.values[i] for i in known.list_scored_places()), None)


def _complete(table: SampleTable, value: float) -> Iterator[tuple[Sample, Score]]:
    """Yield every sample with its score, or with `value` if it has none."""
    yield from table.pairs(table.list_scored_places())
    yield from (
        (table.samples[i], Score(value=value, outcome=Outcome.PARTIAL))
        for i in table.list_unanswered()
    )


class _Hooks:
    """Call functions of a task that compute figures from its scores, and keep their errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def call(self, name: str, of: Callable[[], T], without: T) -> T:
        """Return the result of the function, or `without` if it raises."""
        try:
            return of()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            line = f"{name}: {describe_error(error)['told']}"
            if line not in self.errors:
                self.errors.append(line)
            return without


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


MOST_REASONS = 254
"""Number of different reasons that are kept apart."""
OTHERS = "others"


class UnlistedFinishes:
    """The reason of each sample that has such a one, unless the plan knows it."""

    def __init__(self, known: Collection[str], samples: int) -> None:
        self._known = frozenset(reason.strip().lower() for reason in known)
        self._samples = samples
        self._names: list[str] = []
        self._of = bytearray()

    def note(self, i: int, reason: str | None) -> bool:
        """Keep the reason of a sample. Return False if the plan says that it ends an answer."""
        if reason is None or reason.strip().lower() in self._known:
            return False
        if not self._of:
            self._of = bytearray(self._samples)
        name = reason if len(self._names) < MOST_REASONS or reason in self._names else OTHERS
        if name not in self._names:
            self._names.append(name)
        self._of[i] = self._names.index(name) + 1
        return True

    def forget(self, i: int) -> None:
        """Remove the reason of a sample, if it has one."""
        if self._of:
            self._of[i] = 0

    def counts(self) -> Mapping[str, int]:
        """Return the number of samples of each reason, the most frequent first."""
        found = Counter(self._of)
        named = {name: n for code, name in enumerate(self._names, 1) if (n := found[code])}
        return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))
