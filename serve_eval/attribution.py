"""Which of the workers behind one door gave the bad answers of a task, from what is known of who answered what."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from serve_eval.joining import IDS, TIMES
from serve_eval.journal import Record
from serve_eval.schema import Attribution, Metric, Response, WorkerFigures, WorkerShare
from serve_eval.served import Served
from serve_eval.slow_workers import Timed, in_run
from serve_eval.stats.contingency import CONTEXT, GENERATION, Cell, rows

ALPHA = 0.01
"""The probability of accusing anybody of healthy workers, over all rows of a task."""
WRONG, EMPTY, FAILURES = "wrong answers", "empty answers", "failures"
MEASURES = (WRONG, EMPTY, FAILURES)
TOGETHER = " + "
"""Between the two workers of a pair."""


def wrong(values: Sequence[float], metric: Metric) -> list[bool]:
    """Which scores are bad ones. Of scores that are the best or the worst all but the best; else those below their
    median, or where none lies below it, at it, unless all are the same."""
    better = [value if metric.higher_is_better else -value for value in values]
    ends = [end if metric.higher_is_better else -end for end in (metric.lo, metric.hi) if end is not None]
    if len(ends) == 2 and all(value in ends for value in better):
        return [value < max(ends) for value in better]
    middle = median(better) if better else 0.0
    low = [value < middle for value in better]
    return low if any(low) else [value == middle and middle < max(better) for value in better]


def attributed(
    fates: Iterable[tuple[str, float, bool]],
    records: Iterable[Record],
    served: Mapping[str, Sequence[Served]],
    metric: Metric,
) -> Attribution:
    """The attribution of a task. `fates` are the samples with their scores (NaN: failed) and whether there was no text,
    `records` what was had of them, `served` what is known of who answered."""
    results = _results(records)
    known: list[tuple[Served, float, bool, Response | None]] = []
    planned = 0
    for name, value, empty in fates:
        planned += 1
        if (found := results.get(name)) is not None:
            started_s, response = found
            line = next((one for one in served.get(name, ()) if one.started_s == started_s), None)
            if line is not None:
                known.append((line, value, empty, response))
    how = Counter(line.how for line, _, _, _ in known)
    scored = [entry for entry in known if not math.isnan(entry[1])]
    measures = {
        WRONG: _cells(zip([e[0] for e in scored], wrong([e[1] for e in scored], metric), strict=True)),
        EMPTY: _cells((line, empty) for line, _, empty, _ in scored),
        FAILURES: _cells((line, math.isnan(value)) for line, value, _, _ in known),
    }
    return Attribution(
        how=" and ".join(name for name in (IDS, TIMES) if how[name]) or TIMES,
        joined=len(known),
        planned=planned,
        alpha=ALPHA,
        rows=shares(measures, ALPHA),
        figures=_figures([(line, response) for line, _, _, response in known]),
        times=in_run(
            [
                Timed(line.context, line.generation, line.id, response.latency_s, response.usage.completion_tokens)
                for line, _, _, response in known
                if response is not None
            ]
        ),
    )


def shares(measures: Mapping[str, Sequence[Cell]], alpha: float) -> tuple[WorkerShare, ...]:
    """The rows of an attribution."""
    return tuple(
        WorkerShare(
            worker=TOGETHER.join(row.worker),
            role=row.role,
            measure=row.measure,
            answers=row.answers,
            bad=row.bad,
            others=row.others,
            others_bad=row.others_bad,
            p=row.p,
            p_holm=row.p_holm,
            accused=row.accused,
        )
        for row in rows(measures, alpha)
    )


def _results(records: Iterable[Record]) -> dict[str, tuple[float, Response | None]]:
    """When the attempt began by which each sample has its result: the first response, else the last failure."""
    found: dict[str, tuple[float, Response | None]] = {}
    for one in records:
        result = one.response or one.failure
        if result is None or not result.attempts or found.get(one.id, (0.0, None))[1] is not None:
            continue
        found[one.id] = result.attempts[-1].start_s, one.response
    return found


def _cells(answers: Iterable[tuple[Served, bool]]) -> list[Cell]:
    sums: dict[tuple[str | None, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for line, bad in answers:
        sums[line.context, line.generation][0] += 1
        sums[line.context, line.generation][1] += bad
    return [Cell(context, generation, n, bad) for (context, generation), (n, bad) in sums.items()]


def _figures(answers: Sequence[tuple[Served, Response | None]]) -> tuple[WorkerFigures, ...]:
    found = []
    for role, field in ((CONTEXT, "context"), (GENERATION, "generation")):
        for worker in sorted({name for line, _ in answers if (name := getattr(line, field)) is not None}):
            its = [(line, response) for line, response in answers if getattr(line, field) == worker]
            told = [r.usage for _, r in its if r is not None and r.usage.cached_tokens is not None]
            found.append(
                WorkerFigures(
                    worker=worker,
                    role=role,
                    answers=len(its),
                    kv_transfer_s=_median(line.kv_transfer_s for line, _ in its),
                    kv_bytes=_median(line.kv_bytes for line, _ in its),
                    prompt_tokens=sum(usage.prompt_tokens for usage in told) if told else None,
                    cached_tokens=sum(usage.cached_tokens or 0 for usage in told) if told else None,
                )
            )
    return tuple(found)


def _median(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return median(told) if told else None
