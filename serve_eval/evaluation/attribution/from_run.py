"""Find the worker behind a shared endpoint that gave the bad answers of a task, from records of who
answered what.

A worker that is given hard prompts gives more wrong answers than others, and is sound. So answers
are compared where difficulty is nearly the same: with a reference, among prompts that as many of
its runs had right. And where the router's choice is seen to have to do with a prompt's subject,
beginning, place in the data set or difficulty, only among prompts that are alike in that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from serve_eval.evaluation.attribution.latency import Timed, in_run
from serve_eval.evaluation.attribution.matching import IDS, METRICS, TIMES, TRACES
from serve_eval.evaluation.storage.journal import Record
from serve_eval.evaluation.storage.records.traces import Served
from serve_eval.schema import Attribution, Metric, Response, WorkerFigures, WorkerShare
from serve_eval.stats.contingency import CONTEXT, GENERATION, ROLES, Cell, rows
from serve_eval.verdicts.below_reference import Expected

ALPHA = 0.01
"""The probability of accusing anybody of healthy workers, over all rows of a task, where the
router's choice among prompts that are compared has nothing to do with how hard they are."""
DEALT = 0.01
"""The probability of saying of a router that chooses at random that its choice has to do with the
prompts."""
BLOCKS, LEAST_BLOCK = 20, 5
"""Into how many parts of neighbours a data set is cut at most, and how many joined answers each has
on average."""
PLACE, DIFFICULTY = "place in the data set", "difficulty for the reference"
WRONG, EMPTY, FAILURES = "wrong answers", "empty answers", "failures"
MEASURES = (WRONG, EMPTY, FAILURES)
TOGETHER = " + "
"""Between the two workers of a pair."""


def wrong(values: Sequence[float], metric: Metric) -> list[bool]:
    """Which scores are bad ones. Of scores that are the best or the worst all but the best; else
    those below their median, or where none lies below it, at it, unless all are the same.
    """
    better = [value if metric.higher_is_better else -value for value in values]
    ends = [
        end if metric.higher_is_better else -end
        for end in (metric.lo, metric.hi)
        if end is not None
    ]
    if len(ends) == 2 and all(value in ends for value in better):
        return [value < max(ends) for value in better]
    middle = median(better) if better else 0.0
    low = [value < middle for value in better]
    return low if any(low) else [value == middle and middle < max(better) for value in better]


Kinds = Callable[[Sequence[int]], Mapping[str, list[Hashable]]]
"""From the places of prompts in the protocol to the kinds of these prompts, by what tells them
apart."""


class AttributedAnswer(NamedTuple):
    """The outcome of a sample whose worker is known: `place` is its position in the protocol."""

    line: Served
    place: int
    value: float
    empty: bool
    response: Response | None


def attribute_task(
    fates: Iterable[tuple[str, float, bool]],
    records: Iterable[Record],
    served: Mapping[str, Sequence[Served]],
    metric: Metric,
    *,
    expected: Expected | None = None,
    prompts: int | None = None,
    kinds: Kinds = lambda places: {},
) -> Attribution:
    """The attribution of a task. `fates` are the samples with their scores (NaN: failed) and
    whether there was no text, `records` their answers, `served` which worker gave each answer,
    where known.

    `expected` is what a reference lets expect of each prompt, `prompts` how many there are where
    samples are repeats of them (None: no repeats). `kinds` tells what prompts at some places can be
    told apart by, and the kind of each.
    """
    results = _results(records)
    known = list[AttributedAnswer]()
    planned = 0
    for place, (name, value, empty) in enumerate(fates):
        planned += 1
        if (found := results.get(name)) is not None:
            started_s, response = found
            line = next((one for one in served.get(name, ()) if one.started_s == started_s), None)
            if line is not None:
                known.append(AttributedAnswer(line, place, value, empty, response))
    how = Counter(one.line.how for one in known)
    measures, dealt_by = compare_workers(known, metric, expected, prompts or planned, kinds)
    return Attribution(
        how=" and ".join(name for name in (METRICS, TRACES, IDS, TIMES) if how[name]) or TIMES,
        joined=len(known),
        planned=planned,
        alpha=ALPHA,
        rows=shares(measures, ALPHA),
        figures=_figures([(one.line, one.response) for one in known]),
        times=in_run(
            [
                Timed(
                    line.context,
                    line.generation,
                    line.id,
                    response.latency_s,
                    response.usage.completion_tokens,
                )
                for line, _, _, _, response in known
                if response is not None
            ]
        ),
        counted="" if expected is None else expected.counted,
        dealt_by=dealt_by,
    )


def compare_workers(
    known: Sequence[AttributedAnswer],
    metric: Metric,
    expected: Expected | None,
    prompts: int,
    kinds: Kinds,
) -> tuple[dict[str, list[Cell]], tuple[str, ...]]:
    """Count who gave how many bad answers, by measure and among which prompts, and name what the
    router's choice had to do with. Arguments are those of `attributed`.
    """
    dealt = _dealt_by(known, expected, prompts, kinds)
    groups: list[tuple[Hashable, ...]] = (
        list(zip(*dealt.values(), strict=True)) if dealt else [()] * len(known)
    )
    both = list(zip(known, groups, strict=True))
    scored = [(one, group) for one, group in both if not math.isnan(one.value)]
    measures = {
        WRONG: _cells(_wrong_ones(scored, metric, expected)),
        EMPTY: _cells((one.line, one.empty, group) for one, group in scored),
        FAILURES: _cells((one.line, math.isnan(one.value), group) for one, group in both),
    }
    return measures, tuple(dealt)


def _wrong_ones(
    scored: Sequence[tuple[AttributedAnswer, tuple[Hashable, ...]]],
    metric: Metric,
    expected: Expected | None,
) -> list[tuple[Served, bool, tuple[Hashable, ...]]]:
    """Return who gave which answers, whether they are wrong, and which of them are compared with
    one another.
    """
    if expected is None:
        bad = wrong([one.value for one, _ in scored], metric)
        return [(one.line, is_bad, group) for (one, group), is_bad in zip(scored, bad, strict=True)]
    return [
        (one.line, is_bad, (expected.group(one.place), *group))
        for one, group in scored
        if (is_bad := expected.bad(one.place, one.value)) is not None
    ]


def _dealt_by(
    known: Sequence[AttributedAnswer], expected: Expected | None, prompts: int, kinds_of: Kinds
) -> dict[str, list[Hashable]]:
    """Return what the choice of the workers had to do with, with the kind of each answer's prompt.

    The answers say nothing here, so that a stratum that is chosen so leaves the tests within it
    exact.
    """
    from serve_eval.stats.dependence import dependence

    places = [one.place % prompts for one in known]
    blocks = min(BLOCKS, len(known) // LEAST_BLOCK)
    kinds: dict[str, list[Hashable]] = {
        **kinds_of(places),
        PLACE: [place * blocks // prompts for place in places],
        DIFFICULTY: [0 if expected is None else expected.group(place) for place in places],
    }
    kinds = {name: kind for name, kind in kinds.items() if len(set(kind)) > 1}
    chosen = [
        [(one.line.context, one.line.generation)[place] for one in known]
        for place in range(len(ROLES))
    ]
    roles = [workers for workers in chosen if len(set(workers)) > 1]
    level = DEALT / max(1, len(kinds) * len(roles))
    return {
        name: kind
        for name, kind in kinds.items()
        if any(dependence(workers, kind) <= level for workers in roles)
    }


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
    """When the attempt began by which each sample has its result: the first response, else the last
    failure.
    """
    found: dict[str, tuple[float, Response | None]] = {}
    for one in records:
        result = one.response or one.failure
        if result is None or not result.attempts or found.get(one.id, (0.0, None))[1] is not None:
            continue
        found[one.id] = result.attempts[-1].start_s, one.response
    return found


def _cells(answers: Iterable[tuple[Served, bool, Hashable]]) -> list[Cell]:
    sums: dict[tuple[str | None, str | None, Hashable], list[int]] = defaultdict(lambda: [0, 0])
    for line, bad, group in answers:
        sums[line.context, line.generation, group][0] += 1
        sums[line.context, line.generation, group][1] += bad
    return [
        Cell(context, generation, n, bad, group=group)
        for (context, generation, group), (n, bad) in sums.items()
    ]


def _figures(answers: Sequence[tuple[Served, Response | None]]) -> tuple[WorkerFigures, ...]:
    found = []
    for role, field in ((CONTEXT, "context"), (GENERATION, "generation")):
        for worker in sorted(
            {name for line, _ in answers if (name := getattr(line, field)) is not None}
        ):
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
