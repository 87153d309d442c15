"""Which of the workers behind one door lets wait: how long its answers took beside those of the
others.

A slow answer is no wrong one, so this accuses nobody: it is told as a warning. A server is called
slow when it takes more than SLOWER times as long as the others for more than half of its answers,
beyond chance. What is alike, however heavy the tails of its times are, takes twice the median of
the others for less than half of them, so that the level is hardly ever used up. An answer of more
tokens may take longer: a row whose answers are longer than those beside it by more than LONGER is
not tested, or a server whose answers are empty would make all others look slow.
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
"""The probability of calling anything slow where all are alike, over all rows."""
LONGER = 1.25
"""By how many times the tokens of its answers (medians) may exceed those of the others' that they
are beside."""
LEAST = 20
"""Answers of others whose median may stand for them in a run, where every prompt went to one server
only."""


class Timed(NamedTuple):
    """An answer that these workers had a hand in (None: none of that role, or not known): after how
    many seconds, of how many tokens (0: not told).
    """

    context: str | None
    generation: str | None
    prompt: str
    seconds: float
    tokens: int

    def of(self, place: int) -> str | None:
        """The worker of the role at that place of ROLES."""
        return (self.context, self.generation)[place]


class _Usual(NamedTuple):
    seconds: float
    tokens: float


_Beside = tuple[Timed, _Usual]


def rank_asked(
    alone: Sequence[Timed], in_pairs: Sequence[Timed]
) -> tuple[tuple[WorkerTimes, ...], tuple[WorkerTimes, ...]]:
    """Workers that were asked the same prompts at the same time: the rows of each alone, and those
    of pairs.

    Prompt by prompt: the quickest answer that a worker had a hand in beside those of the others of
    its role (their median), so that a slow partner slows nobody; the quickest of all servers of a
    role beside the median of the other role, where each answers whole; and a pair beside the median
    of those with the same context server, and of those with the same generation server, by the
    longer of both. Times of two legs add up, so that two slow servers never make their pair look
    slow by more than 2 times.
    """
    each, joint = _by_prompt(alone), _by_prompt(in_pairs)
    of_alone = [*_workers(each), *_legs(each)]
    rows = _correct([*of_alone, *_workers(joint), *_pairs(joint)])
    return rows[: len(of_alone)], rows[len(of_alone) :]


def in_run(answers: Sequence[Timed]) -> tuple[WorkerTimes, ...]:
    """Workers of which each had other prompts: each answer beside the median of all that others of
    the role gave with the same partner, or where those are few, with any.
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
    """A slow one, for people."""
    taken, others = f"{row.taken_s:.3g} s per {answer}", f"{row.others_s:.3g} s (medians)"
    more = (
        f"more than {SLOWER:g} times as long for {row.longer} of {row.answers} (p ="
        f" {row.p_holm:.2g})"
    )
    if not row.worker:
        other = ROLES[1 - ROLES.index(row.role)]
        return (
            f"slow_leg: the {row.role} servers take {taken} and the {other} servers {others}, when"
            f" each answers the same prompts whole; {more}: a fault where both have the same"
            " hardware"
        )
    if row.role == PAIR:
        context, _, generation = row.worker.partition(" + ")
        name = f"context server {context} with generation server {generation}"
        return f"slow_pair: {name} takes {taken}, and either of them with others {others}; {more}"
    servers = "server" if row.role not in ROLES else f"{row.role} server"
    return (
        f"slow_worker: {servers} {row.worker} takes {taken} and the other {servers}s {others};"
        f" {more}"
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
    """A row by itself; p = 1 where nothing can be told."""
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
