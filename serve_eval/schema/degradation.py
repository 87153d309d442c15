"""Types that describe a run whose answers became worse while it ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningShare:
    """The share of bad answers among the latest `window` considered requests, at several requests.

    `at` counts requests from 1 over the run. `by_start` is in the order of their starts, `by_end`
    in that of their ends, in which long answers come late for every endpoint.
    """

    window: int
    at: tuple[int, ...]
    by_start: tuple[float, ...]
    by_end: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """A run whose answers became worse, in the order in which its requests started.

    `measure` says in what: the value, or answers that are empty, repeat themselves, or are longer
    or shorter than most. `since` is the number of the first worse request, `noticed` that of the
    request at which it was certain, counted from 1. `before` and `after` are the shares of bad
    answers before `since` and from it on. `started_s` is the time at which that request started, in
    seconds since 1970 in UTC. `counted` says which answers are bad, and on which prompts, if a
    reference decides it; both shares are then among those, while the numbers remain those of all
    requests.
    """

    measure: str
    since: int
    noticed: int
    of: int
    before: float
    after: float
    started_s: float
    course: RunningShare | None = None
    counted: str = ""
