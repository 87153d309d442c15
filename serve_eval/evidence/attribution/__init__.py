"""Find the worker behind a shared endpoint that gave the bad answers of a task.

The input is records of which worker answered which request. A healthy worker that receives hard
prompts gives more wrong answers than others. So answers are compared only at nearly the same
difficulty: with a reference, among prompts that the same number of its runs answered correctly. If
the router's choice depends on a prompt's subject, beginning, place in the data set or difficulty,
only prompts that agree in it are compared.

A router with affinity sends prompts that begin alike to one server, such as questions on one text
or with the examples of one subject.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from serve_eval.evidence.attribution.latency import Timed, in_run
from serve_eval.evidence.attribution.matching import (
    HEADERS,
    IDS,
    METRICS,
    TIMES,
    TRACES,
    find_servers,
    summarise_attempts,
)
from serve_eval.schema import (
    Attribution,
    Metric,
    Response,
    Sample,
    Task,
    WorkerFigures,
    WorkerShare,
)
from serve_eval.stats.contingency import CONTEXT, GENERATION, ROLES, Cell, find_cut, rows
from serve_eval.storage.answer_origins import Served
from serve_eval.storage.journal import Record
from serve_eval.verdicts.below_reference import Expected

ALPHA = 0.01
"""Probability of accusing any healthy worker, over all rows of a task.

It holds if the router's choice among compared prompts is independent of how hard they are.
"""
DEALT = 0.01
"""Probability of reporting that a router which chooses at random depends on the prompts."""
BLOCKS, LEAST_BLOCK = 20, 5
"""Maximum number of blocks of neighbours in a data set, and the mean number of joined answers in
each."""
PLACE, DIFFICULTY = "place in the data set", "difficulty for the reference"
WRONG, EMPTY, FAILURES = "wrong answers", "empty answers", "failures"
AT_FIRST = "failed at first"
"""Measure of first attempts, of which retries hide the failed ones from the other measures."""
KEYS = (HEADERS, METRICS, TRACES, IDS, TIMES)
"""All ways in which a run finds out the servers of an answer, in the order of the report."""
TOGETHER = " + "
"""Separator between the two workers of a pair."""


def wrong(values: Sequence[float], metric: Metric) -> list[bool]:
    """Return which scores are bad.

    If all scores are the best or the worst possible, all but the best are bad. Otherwise the lower
    half is bad, as `find_cut` splits it.
    """
    better = [value if metric.higher_is_better else -value for value in values]
    ends = [
        end if metric.higher_is_better else -end
        for end in (metric.lo, metric.hi)
        if end is not None
    ]
    if len(ends) == 2 and all(value in ends for value in better):
        return [value < max(ends) for value in better]
    cut = find_cut(better) if better else 0.0
    return [value < cut for value in better]


Kinds = Callable[[Sequence[int]], Mapping[str, list[Hashable]]]
"""Maps the places of prompts in the protocol to the kinds of these prompts, by distinguishing
property."""


class AttributedAnswer(NamedTuple):
    """The outcome of a sample whose worker is known; `place` is its position in the protocol."""

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
    tasks: int = 1,
) -> Attribution:
    """Return the attribution of a task.

    `fates` has, per sample, its id, its score (NaN: failed) and whether its text was empty.
    `records` has the answers, `served` the worker of each answer, if known. `expected` is what a
    reference predicts for each prompt. `prompts` is the number of prompts if samples are repeats of
    them (None: no repeats). `kinds` returns the properties that distinguish prompts at some places,
    and the kind of each prompt. The `tasks` of a run share the probability of accusing a healthy
    worker.
    """
    alpha, results = ALPHA / tasks, summarise_attempts(records)
    known, firsts = list[AttributedAnswer](), list[AttributedAnswer]()
    planned = 0
    for place, (name, value, empty) in enumerate(fates):
        planned += 1
        if (found := results.get(name)) is not None:
            started_s, response, first = found
            line = next((one for one in served.get(name, ()) if one.started_s == started_s), None)
            if line is not None:
                known.append(AttributedAnswer(line, place, value, empty, response))
            if (first_line := find_servers(name, first)) is not None:
                fails = math.nan if first.failure else 0.0
                firsts.append(AttributedAnswer(first_line, place, fails, False, None))
    how = Counter(one.line.how for one in known)
    measures, dealt_by = compare_workers(known, metric, expected, prompts or planned, kinds)
    if any(found.response is not None and found.first.failure for found in results.values()):
        of_firsts, also_dealt_by = compare_workers(
            firsts, metric, expected, prompts or planned, kinds
        )
        measures[AT_FIRST] = of_firsts[FAILURES]
        dealt_by = tuple(dict.fromkeys((*dealt_by, *also_dealt_by)))
    return Attribution(
        how=" and ".join(name for name in KEYS if how[name]) or TIMES,
        joined=len(known),
        planned=planned,
        alpha=alpha,
        rows=shares(measures, alpha),
        figures=measure_workers([(one.line, one.response) for one in known]),
        times=in_run(
            [
                Timed(
                    one.line.context,
                    one.line.generation,
                    f"{one.place % (prompts or planned)}",
                    one.response.latency_s,
                    one.response.usage.completion_tokens,
                    one.response.usage.prompt_tokens - (one.response.usage.cached_tokens or 0),
                    one.line.started_s,
                )
                for one in known
                if one.response is not None
            ],
            alpha,
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
    """Count each worker's bad answers by measure and group of prompts.

    Also return the properties that the router's choice depends on. Arguments are those of
    `attribute_task`.
    """
    dealt = _dealt_by(known, expected, prompts, kinds)
    groups: list[tuple[Hashable, ...]] = (
        list(zip(*dealt.values(), strict=True)) if dealt else [()] * len(known)
    )
    both = list(zip(known, groups, strict=True))
    scored = [(one, group) for one, group in both if not math.isnan(one.value)]
    of_measures: dict[str, list[_Judged]] = {
        WRONG: _wrong_ones(scored, metric, expected),
        EMPTY: [(one, one.empty, group) for one, group in scored],
        FAILURES: [(one, math.isnan(one.value), group) for one, group in both],
    }
    repeated = any(one.place >= prompts for one in known)
    return {
        name: _list_cells(judged, prompts) if repeated else _count_cells(judged)
        for name, judged in of_measures.items()
    }, tuple(dealt)


_Judged = tuple[AttributedAnswer, bool, Hashable]
"""An answer, whether it is bad, and the group of prompts within which it is compared."""


def _wrong_ones(
    scored: Sequence[tuple[AttributedAnswer, tuple[Hashable, ...]]],
    metric: Metric,
    expected: Expected | None,
) -> list[_Judged]:
    """Return the answers that count, whether each is wrong, and its group for comparison."""
    if expected is None:
        bad = wrong([one.value for one, _ in scored], metric)
        return [(one, is_bad, group) for (one, group), is_bad in zip(scored, bad, strict=True)]
    return [
        (one, is_bad, (expected.group(one.place), *group))
        for one, group in scored
        if (is_bad := expected.bad(one.place, one.value)) is not None
    ]


def _dealt_by(
    known: Sequence[AttributedAnswer], expected: Expected | None, prompts: int, kinds_of: Kinds
) -> dict[str, list[Hashable]]:
    """Return the properties that the choice of workers depends on, with the kind of each prompt.

    The answers themselves are not used, so tests within strata chosen this way stay exact. Each
    prompt counts once, by its first known answer: a router that hashes prompts sends all repeats of
    a prompt to one worker, whatever its kind.
    """
    from serve_eval.stats.contingency import dependence

    every = [one.place % prompts for one in known]
    first = {place: i for i, place in reversed(list(enumerate(every)))}
    places = list(first)
    blocks = min(BLOCKS, len(places) // LEAST_BLOCK)
    kinds: dict[str, list[Hashable]] = {
        **kinds_of(places),
        PLACE: [place * blocks // prompts for place in places],
        DIFFICULTY: [0 if expected is None else expected.group(place) for place in places],
    }
    kinds = {name: kind for name, kind in kinds.items() if len(set(kind)) > 1}
    lines = [known[i].line for i in first.values()]
    chosen = [
        [(line.context, line.generation)[place] for line in lines] for place in range(len(ROLES))
    ]
    roles = [workers for workers in chosen if len(set(workers)) > 1]
    level = DEALT / max(1, len(kinds) * len(roles))
    at = {place: i for i, place in enumerate(places)}
    return {
        name: [kind[at[place]] for place in every]
        for name, kind in kinds.items()
        if any(dependence(workers, kind) <= level for workers in roles)
    }


def shares(measures: Mapping[str, Sequence[Cell]], alpha: float) -> tuple[WorkerShare, ...]:
    """Return the rows of an attribution."""
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


def _list_cells(answers: Iterable[_Judged], prompts: int) -> list[Cell]:
    """Return a cell for each answer, with its prompt, in the order of the repeats."""
    return [
        Cell(
            one.line.context,
            one.line.generation,
            1,
            int(bad),
            group=group,
            prompt=one.place % prompts,
        )
        for one, bad, group in sorted(answers, key=lambda judged: judged[0].place)
    ]


def _count_cells(answers: Iterable[_Judged]) -> list[Cell]:
    """Return the sums of the answers that the same workers gave."""
    sums: dict[tuple[str | None, str | None, Hashable], list[int]] = defaultdict(lambda: [0, 0])
    for one, bad, group in answers:
        workers = one.line.context, one.line.generation, group
        sums[workers][0] += 1
        sums[workers][1] += bad
    return [
        Cell(context, generation, n, bad, group=group)
        for (context, generation, group), (n, bad) in sums.items()
    ]


def measure_workers(answers: Sequence[tuple[Served, Response | None]]) -> tuple[WorkerFigures, ...]:
    """Return the figures of each worker, the context servers first."""
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


SUBJECT, BEGINNING = "subject", "beginning of the prompt"
LENGTH = 64
"""Characters of a beginning, after the part that all prompts share.

That is about 16 tokens, and less than a block of a prefix cache, so that prompts that share a block
of their own are alike.
"""


def kinds_of(task: Task, samples: Sequence[Sample]) -> dict[str, list[Hashable]]:
    """Return the kind of each sample's prompt by subject and by beginning.

    Leaves out a property that is the same for all.
    """
    kinds: dict[str, list[Hashable]] = {
        SUBJECT: [_subject(task, sample) for sample in samples],
        BEGINNING: [*_beginnings([_text(sample) for sample in samples])],
    }
    return {name: kind for name, kind in kinds.items() if len(set(kind)) > 1}


def _subject(task: Task, sample: Sample) -> str | None:
    """Return the first category in the task's breakdown, or None if there is none."""
    try:
        tables = task.breakdown([(sample, 0.0)])
    except Exception:  # a task's own function; the result names the errors that it makes
        return None
    for table in tables.values():
        if isinstance(table, Mapping) and len(table) == 1:
            return str(next(iter(table)))
    return None


def _beginnings(texts: Sequence[str]) -> list[str]:
    """Return the part of each text that follows their common beginning."""
    # All texts share what the first and the last of them share.
    first, last = min(texts, default=""), max(texts, default="")
    shared = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
        len(first),
    )
    return [text[shared : shared + LENGTH] for text in texts]


def _text(sample: Sample) -> str:
    """Return the text of a prompt."""
    return (
        sample.prompt
        if isinstance(sample.prompt, str)
        else "\n".join(turn.text for turn in sample.prompt)
    )
