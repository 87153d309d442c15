"""Find slow workers in a run, whose router chose who gets which prompt, and how many of them.

Like is compared with like. Prompts are compared with those of about as many tokens to compute. A
worker that has more requests in flight may take longer for that alone: by how much shows in each
worker's own answers, which it gave at unlike loads. Times are divided by that effect of the load.
A worker whose answers take longer without being slower in this sense is more loaded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from serve_eval.evidence.attribution.latency import (
    ALPHA,
    Timed,
    UsualTime,
    correct_rows,
    make_row,
    usual_time,
)
from serve_eval.schema import WorkerTimes
from serve_eval.stats.contingency import ROLES

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

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
