"""Find the slowest worker behind a shared endpoint by comparing its answer times with the others'.

A slow answer is not wrong, so a slow worker is only a warning. A server counts as slow if more than
half of its answers take more than SLOWER times as long as the others', beyond chance. Among equal
servers, even with heavy tails, less than half of the answers take twice the others' median, so the
level is hardly ever used up. Longer answers take more time: a row whose answers have more than
LONGER times the tokens of those compared is not tested. Otherwise a server with empty answers would
make all others look slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from serve_eval.schema import WorkerTimes
from serve_eval.stats.contingency import CONTEXT, GENERATION, PAIR, ROLES
from serve_eval.stats.lateness import SLOWER, lateness
from serve_eval.stats.multiplicity import holm

ALPHA = 0.01
"""Probability of calling any server slow if all are equal, over all rows."""
LONGER = 1.25
"""Maximum ratio of median answer tokens between a row and the answers it is compared with."""
LEAST = 20
"""Minimum number of others' answers for a median in a run, where each prompt went to one server
only."""


class Timed(NamedTuple):
    """An answer and the workers involved (None: no worker of that role, or unknown).

    `seconds` is its duration, `tokens` its length (0: not reported).
    """

    context: str | None
    generation: str | None
    prompt: str
    seconds: float
    tokens: int

    def of(self, place: int) -> str | None:
        """Return the worker of the role at this index of ROLES."""
        return (self.context, self.generation)[place]


class _Usual(NamedTuple):
    seconds: float
    tokens: float


_Beside = tuple[Timed, _Usual]


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
    rows = _correct([*of_alone, *_workers(joint), *_pairs(joint)])
    return rows[: len(of_alone)], rows[len(of_alone) :]


def in_run(answers: Sequence[Timed]) -> tuple[WorkerTimes, ...]:
    """Return the rows of workers that received different prompts.

    Each answer is compared with the median of all answers of the role's other workers with the same
    partner, or, if those are few, with any partner.
    """
    found = []
    for place, role in enumerate(ROLES):
        groups: dict[tuple[str, str | None], list[Timed]] = defaultdict(list)
        for one in answers:
            if (name := one.of(place)) is not None:
                groups[name, one.of(1 - place)].append(one)
        if len(names := sorted({name for name, _ in groups})) < 2:
            continue
        for name in names:
            others = [one for (other, _), some in groups.items() if other != name for one in some]
            beside: list[_Beside] = []
            for partner in [partner for one, partner in groups if one == name]:
                same = [one for one in others if one.of(1 - place) == partner]
                known = same if len(same) >= LEAST else others
                if len(known) >= LEAST:
                    usual = _usual(known)
                    beside += [(one, usual) for one in groups[name, partner]]
            found.append(_row(name, role, beside))
    return _correct(found)


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
            yield _row(
                name,
                role,
                [(own, _usual(others)) for own, others in sides if own is not None and others],
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
            yield _row("", role, [(_quickest(own), _usual(others)) for own, others in both])


def _pairs(prompts: Sequence[Sequence[Timed]]) -> Iterator[WorkerTimes]:
    for context in _names(prompts, 0):
        for generation in _names(prompts, 1):
            beside: list[_Beside] = []
            for some in prompts:
                own = [one for one in some if one[:2] == (context, generation)]
                with_context = [
                    one for one in some if one.context == context and one.generation != generation
                ]
                with_generation = [
                    one for one in some if one.generation == generation and one.context != context
                ]
                if own and with_context and with_generation:
                    beside.append((own[0], max(_usual(with_context), _usual(with_generation))))
            if beside:
                yield _row(f"{context} + {generation}", PAIR, beside)


def _names(prompts: Sequence[Sequence[Timed]], place: int) -> list[str]:
    return sorted({name for some in prompts for one in some if (name := one.of(place)) is not None})


def _quickest(answers: Iterable[Timed]) -> Timed:
    return min(answers, key=lambda one: one.seconds)


def _usual(answers: Sequence[Timed]) -> _Usual:
    return _Usual(median(one.seconds for one in answers), median(one.tokens for one in answers))


def _row(worker: str, role: str, beside: Sequence[_Beside]) -> WorkerTimes:
    """Return an uncorrected row; p = 1 if nothing can be concluded."""
    found = lateness((usual.seconds, own.seconds) for own, usual in beside)
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


def _correct(rows: Sequence[WorkerTimes]) -> tuple[WorkerTimes, ...]:
    corrected = holm([row.p for row in rows])
    return tuple(
        replace(row, p_holm=p, slow=p <= ALPHA) for row, p in zip(rows, corrected, strict=True)
    )
