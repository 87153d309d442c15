"""Find the slowest worker behind a shared endpoint by comparing its answer times with the others'.

A slow answer is not wrong, so a slow worker is only a warning. A server counts as slow if more than
half of its answers take more than SLOWER times as long as the others', beyond chance. Among equal
servers, even with heavy tails, less than half of the answers take twice the others' median, so the
level is hardly ever used up. Longer answers take more time: a row whose answers have more than
LONGER times the tokens of those compared is not tested. Otherwise a server with empty answers would
make all others look slow.

In a run, whose router chose who gets which prompt, and how many of them, like is compared with
like. Prompts are compared with those of about as many tokens to compute. A worker that has more
requests in flight may take longer for that alone: by how much shows in each worker's own answers,
which it gave at unlike loads. Times are divided by that effect of the load. A worker whose answers
take longer without being slower in this sense is more loaded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from serve_eval.schema import WorkerTimes
from serve_eval.stats.contingency import CONTEXT, GENERATION, PAIR, ROLES
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.sign_tests import SLOWER, lateness

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

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


LEAST = 20
"""Minimum number of others' answers that an answer is compared with, and of compared prompts."""
ALIKE = 1.25
"""Largest ratio of the tokens of prompts that are alike, and of even shares of work."""
FEW_TOKENS = 32
"""Prompt tokens that add nothing to a time: shorter prompts than these are alike."""
SURE = 3.0
"""Standard errors by which the effect of the load may be larger than it shows."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer with its worker and the partner, and the load of the worker.

    `load` is the mean number of requests in flight at the worker while it gave the answer. `size`
    is the same for prompts that are alike.
    """

    timed: Timed
    worker: str
    partner: str | None
    load: float
    size: int


def in_run(answers: Sequence[Timed], alpha: float = ALPHA) -> tuple[WorkerTimes, ...]:
    """Return the rows of workers that received different prompts.

    Each answer is compared with the median of the answers of the role's other workers that are
    alike, with the same partner or, if those are few, with any partner. `alpha` is the probability
    of calling any server slow if all are equal.
    """
    roles = [found for place in range(len(ROLES)) if (found := _Role.of(answers, place)).names]
    alike = correct_rows([one.compare_alike(name) for one in roles for name in one.names], alpha)
    every = correct_rows([one.compare_all(name) for one in roles for name in one.names], alpha)
    reasons = [one.describe_work(name) for one in roles for name in one.names]
    return tuple(
        replace(row, slow=False, loaded=why) if row.slow and not own.slow and why else own
        for own, row, why in zip(alike, every, reasons, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Role:
    """The answers of all workers of one role; no `names` if it has one.

    Times are proportional to the load to the power of `effect`.
    """

    role: str
    names: Sequence[str]
    answers: Sequence[_Answer]
    effect: float

    @classmethod
    def of(cls, answers: Sequence[Timed], place: int) -> _Role:
        by_worker: dict[str, list[Timed]] = defaultdict(list)
        for one in answers:
            if (name := one.of(place)) is not None:
                by_worker[name].append(one)
        found = [
            _Answer(one, name, one.of(1 - place), float(load), _find_size(one))
            for name, own in by_worker.items()
            for one, load in zip(own, _find_loads(own), strict=True)
        ]
        names = sorted(by_worker) if len(by_worker) > 1 else ()
        return cls(ROLES[place], names, found, _find_effect(found) if names else 0.0)

    def compare_alike(self, name: str) -> WorkerTimes:
        """Return the row of a worker, against answers that are alike.

        The times are those at its own load, for the others too.
        """
        usual = [self._find_usual(name, partner=partner) for partner in (True, False)]
        beside = [
            (self._unload(one), found)
            for one in self.answers
            if one.worker == name
            and (found := usual[0].get((one.size, one.partner)) or usual[1].get((one.size, None)))
        ]
        row = make_row(name, self.role, beside)
        if len({own.prompt for own, _ in beside}) < LEAST:
            return replace(row, p=1.0, p_holm=1.0)
        scale = median(one.load for one in self.answers if one.worker == name) ** self.effect
        return replace(row, taken_s=scale * row.taken_s, others_s=scale * row.others_s)

    def compare_all(self, name: str) -> WorkerTimes:
        """Return the row of a worker, against all answers of the others."""
        own = [one.timed for one in self.answers if one.worker == name]
        others = [one.timed for one in self.answers if one.worker != name]
        usual = usual_time(others) if len(others) >= LEAST else None
        return make_row(name, self.role, [] if usual is None else [(one, usual) for one in own])

    def describe_work(self, name: str) -> str:
        """Return what a worker had more of than the others; empty if nothing."""
        found, of = list[str](), len(self.answers)
        own, others = self._measure(name, len)
        if own > ALIKE * others:
            found.append(f"{own / of:.0%} of the requests, the others {others / of:.0%} each")
        own, others = self._measure(name, lambda some: median(one.timed.computed for one in some))
        if own > ALIKE * max(others, FEW_TOKENS):
            found.append(
                f"prompts with {own:,.0f} tokens to compute, the others {others:,.0f} (medians)"
            )
        own, others = self._measure(name, lambda some: median(one.load for one in some))
        if not found and own > ALIKE * others:
            found.append(f"{own:.1f} requests in flight, the others {others:.1f} (medians)")
        return " and ".join(found)

    def _measure(
        self, name: str, measure: Callable[[Sequence[_Answer]], float]
    ) -> tuple[float, float]:
        """Return a measure of a worker's answers, and the median of that of the others."""
        by_worker: dict[str, list[_Answer]] = defaultdict(list)
        for one in self.answers:
            by_worker[one.worker].append(one)
        values = {worker: measure(some) for worker, some in by_worker.items()}
        return values.pop(name), median(values.values())

    def _unload(self, one: _Answer) -> Timed:
        """Return the answer with the time that it would take with one request in flight."""
        return one.timed._replace(seconds=one.timed.seconds / one.load**self.effect)

    def _find_usual(self, name: str, *, partner: bool) -> dict[tuple[int, str | None], UsualTime]:
        """Return the usual times of the others for alike prompts, where these are enough."""
        alike: dict[tuple[int, str | None], list[Timed]] = defaultdict(list)
        for one in self.answers:
            if one.worker != name:
                alike[one.size, one.partner if partner else None].append(self._unload(one))
        return {key: usual_time(some) for key, some in alike.items() if len(some) >= LEAST}


def _find_size(one: Timed) -> int:
    """Return the number of the class of prompts that are alike in the tokens to compute."""
    return math.floor(math.log(max(one.computed, FEW_TOKENS) / FEW_TOKENS) / math.log(ALIKE) + 0.5)


def _find_effect(answers: Sequence[_Answer]) -> float:
    """Return the largest power of the load by which times may grow, between 0 and 1.

    It is the slope of log time over log load among the answers that each worker gave to alike
    prompts, by least squares, with SURE standard errors. A worker that is slow at any load does not
    change it. Above 1, answers would take longer than one after the other.
    """
    import numpy

    groups: dict[tuple[str, str | None, int], list[tuple[float, float]]] = defaultdict(list)
    for one in answers:
        seconds = max(one.timed.seconds, 1e-6)
        groups[one.worker, one.partner, one.size].append((math.log(one.load), math.log(seconds)))
    parts = [numpy.array(some) for some in groups.values() if len(some) > 1]
    left = sum(map(len, parts)) - len(parts) - 1
    if left < 1:
        return 1.0
    loads, times = numpy.concatenate([part - part.mean(axis=0) for part in parts]).T
    spread = float((loads**2).sum())
    if spread <= 1e-9 * len(loads):
        return 1.0
    slope = float((loads * times).sum()) / spread
    error = math.sqrt(max(0.0, float(((times - slope * loads) ** 2).sum())) / left / spread)
    return min(1.0, max(0.0, slope + SURE * error))


def _find_loads(answers: Sequence[Timed]) -> NDArray[numpy.float64]:
    """Return the mean number of requests in flight at a worker during each of its answers."""
    import numpy

    starts = numpy.array([one.started_s for one in answers])
    ends = starts + numpy.maximum([one.seconds for one in answers], 1e-6)

    def sum_time(edges: NDArray[numpy.float64], at: NDArray[numpy.float64]) -> Any:
        """Return the time since all edges before each point, summed."""
        ordered = numpy.sort(edges)
        before = numpy.searchsorted(ordered, at)
        return before * at - numpy.concatenate([[0.0], numpy.cumsum(ordered)])[before]

    origin = starts.min()  # times since 1970 would cost digits
    starts, ends = starts - origin, ends - origin
    spent = [sum_time(starts, at) - sum_time(ends, at) for at in (starts, ends)]
    loads: NDArray[numpy.float64] = numpy.maximum(1.0, (spent[1] - spent[0]) / (ends - starts))
    return loads
