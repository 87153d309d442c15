"""Sum up the samples of a task: counts, value, bounds, and the figures of the task's functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.results.interval import interval
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
)
from serve_eval.evaluation.results.stability import stability
from serve_eval.processes.forkserver import describe_error
from serve_eval.schema import MEAN, Outcome, Sample, Score, ScorerError, TaskResult
from serve_eval.stats.missing import bound_missing

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
    outcomes = Counter(table.outcomes)
    failures = Counter(table.failures)
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
        if (number := _count_flagged(table, flag))
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
        truncated=_count_flagged(table, TRUNCATED),
        stopped_in_reasoning=_count_flagged(table, STOPPED_IN_REASONING),
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
            if n and name not in summed
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
        looping=_count_flagged(table, LOOPING),
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


def _count_flagged(table: SampleTable, flag: int) -> int:
    return sum(flags & flag for flags in table.flags) // flag


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
