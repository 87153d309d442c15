"""Find the slowest worker behind a shared endpoint by comparing its answer times with the others'.

A slow answer is not wrong, so a slow worker is only a warning. A server counts as slow if more than
half of its answers take more than SLOWER times as long as the others', beyond chance. Among equal
servers, even with heavy tails, less than half of the answers take twice the others' median, so the
level is hardly ever used up. Longer answers take more time: a row whose answers have more than
LONGER times the tokens of those compared is not tested. Otherwise a server with empty answers would
make all others look slow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from serve_eval.schema import WorkerTimes
from serve_eval.stats.contingency import CONTEXT, GENERATION, PAIR, ROLES
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.sign_tests import SLOWER, lateness

ALPHA = 0.01
"""Probability of calling any server slow if all are equal, over all rows."""
LONGER = 1.25
"""Maximum ratio of median answer tokens between a row and the answers it is compared with."""


class Timed(NamedTuple):
    """An answer and the workers involved (None: no worker of that role, or unknown).

    `seconds` is its duration, `tokens` its length (0: not reported). `computed` are the prompt
    tokens that did not come from a prefix cache, `started_s` when it was sent.
    """

    context: str | None
    generation: str | None
    prompt: str
    seconds: float
    tokens: int
    computed: int = 0
    started_s: float = 0.0

    def of(self, place: int) -> str | None:
        """Return the worker of the role at this index of ROLES."""
        return (self.context, self.generation)[place]


class UsualTime(NamedTuple):
    """The medians of the answers that an answer is compared with."""

    seconds: float
    tokens: float


Compared = tuple[Timed, UsualTime]
"""An answer, and those that it is compared with."""


def rank_asked(
    alone: Sequence[Timed], in_pairs: Sequence[Timed]
) -> tuple[tuple[WorkerTimes, ...], tuple[WorkerTimes, ...]]:
    """Return the rows of single workers and of pairs, all asked the same prompts at the same time.

    Comparison is per prompt:

    * a worker's quickest answer with the median of the other workers of its role, so that a slow
      partner slows no worker;
    * the quickest server of a role with the other role's median, if each answers prompts whole;
    * a pair with the median of the pairs with the same context server, and of those with the same
      generation server; the longer one counts.

    The times of two legs add up, so two slow servers never make their pair look more than 2 times
    as slow.
    """
    each, joint = _by_prompt(alone), _by_prompt(in_pairs)
    of_alone = [*_workers(each), *_legs(each)]
    rows = correct_rows([*of_alone, *_workers(joint), *_pairs(joint)])
    return rows[: len(of_alone)], rows[len(of_alone) :]


def describe_slow(row: WorkerTimes, answer: str = "answer") -> str:
    """Return a line about a slow row, for people."""
    taken, others = f"{row.taken_s:.3g} s per {answer}", f"{row.others_s:.3g} s (medians)"
    more = (
        f"more than {SLOWER:g} times as long for {row.longer} of {row.answers} (p ="
        f" {row.p_holm:.2g})"
    )
    if not row.worker:
        other = ROLES[1 - ROLES.index(row.role)]
        return (
            f"slow_leg: the {row.role} servers take {taken}, the {other} servers {others}, when"
            f" each answers the same prompts whole; {more}: a fault if both have the same hardware"
        )
    if row.role == PAIR:
        context, _, generation = row.worker.partition(" + ")
        name = f"context server {context} with generation server {generation}"
        return f"slow_pair: {name} takes {taken}, either of them with others {others}; {more}"
    servers = "server" if row.role not in ROLES else f"{row.role} server"
    if row.loaded:
        return (
            f"more_loaded: {servers} {row.worker} takes {taken}, the other {servers}s {others}, but"
            f" it has {row.loaded}: more loaded, and not shown to be slower"
        )
    return (
        f"slow_worker: {servers} {row.worker} takes {taken}, the other {servers}s {others}; {more}"
    )


def _by_prompt(answers: Iterable[Timed]) -> list[list[Timed]]:
    found: dict[str, list[Timed]] = defaultdict(list)
    for one in answers:
        found[one.prompt].append(one)
    return list(found.values())


def _workers(prompts: Sequence[Sequence[Timed]]) -> Iterator[WorkerTimes]:
    for place, role in enumerate(ROLES):
        if len(names := _names(prompts, place)) < 2:
            continue
        quickest = [
            {
                name: _quickest(own)
                for name in names
                if (own := [one for one in some if one.of(place) == name])
            }
            for some in prompts
        ]
        for name in names:
            sides = [
                (some.get(name), [one for other, one in some.items() if other != name])
                for some in quickest
            ]
            yield make_row(
                name,
                role,
                [(own, usual_time(others)) for own, others in sides if own is not None and others],
            )


def _legs(prompts: Sequence[Sequence[Timed]]) -> Iterator[WorkerTimes]:
    sides: Mapping[str, list[list[Timed]]] = {
        role: [[one for one in some if one.of(place) is not None] for some in prompts]
        for place, role in enumerate(ROLES)
    }
    for role, other in ((CONTEXT, GENERATION), (GENERATION, CONTEXT)):
        both = [
            (own, others)
            for own, others in zip(sides[role], sides[other], strict=True)
            if own and others
        ]
        if both:
            yield make_row("", role, [(_quickest(own), usual_time(others)) for own, others in both])


def _pairs(prompts: Sequence[Sequence[Timed]]) -> Iterator[WorkerTimes]:
    for context in _names(prompts, 0):
        for generation in _names(prompts, 1):
            beside: list[Compared] = []
            for some in prompts:
                own = [one for one in some if one[:2] == (context, generation)]
                with_context = [
                    one for one in some if one.context == context and one.generation != generation
                ]
                with_generation = [
                    one for one in some if one.generation == generation and one.context != context
                ]
                if own and with_context and with_generation:
                    beside.append(
                        (own[0], max(usual_time(with_context), usual_time(with_generation)))
                    )
            if beside:
                yield make_row(f"{context} + {generation}", PAIR, beside)


def _names(prompts: Sequence[Sequence[Timed]], place: int) -> list[str]:
    return sorted({name for some in prompts for one in some if (name := one.of(place)) is not None})


def _quickest(answers: Iterable[Timed]) -> Timed:
    return min(answers, key=lambda one: one.seconds)


def usual_time(answers: Sequence[Timed]) -> UsualTime:
    """Return the medians of some answers."""
    return UsualTime(median(one.seconds for one in answers), median(one.tokens for one in answers))


def make_row(worker: str, role: str, beside: Sequence[Compared]) -> WorkerTimes:
    """Return an uncorrected row; p = 1 if nothing can be concluded.

    A prompt counts once, by the median of its answers.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for own, usual in beside:
        ratios[own.prompt].append(own.seconds / usual.seconds if usual.seconds else math.inf)
    found = lateness((1.0, median(some)) for some in ratios.values())
    taken, others, tokens, others_tokens = (
        median(values) if values else 0.0
        for values in (
            [own.seconds for own, _ in beside],
            [usual.seconds for _, usual in beside],
            [own.tokens for own, _ in beside],
            [usual.tokens for _, usual in beside],
        )
    )
    p = 1.0 if tokens > LONGER * others_tokens else found.p
    return WorkerTimes(
        worker=worker,
        role=role,
        taken_s=taken,
        others_s=others,
        longer=found.longer,
        answers=found.of,
        p=p,
        p_holm=p,
    )


def correct_rows(rows: Sequence[WorkerTimes], alpha: float = ALPHA) -> tuple[WorkerTimes, ...]:
    """Return the rows, corrected by Holm over all of them, with the slow ones marked."""
    corrected = holm([row.p for row in rows])
    return tuple(
        replace(row, p_holm=p, slow=p <= alpha) for row, p in zip(rows, corrected, strict=True)
    )
