"""Describe a run that turned worse on its way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningShare:
    """The share of bad answers among the latest `window` requests that are looked at, at some
    requests counted from 1 over the run: in the order of their starts, and in that of their ends,
    in which long answers come late whatever the endpoint does.
    """

    window: int
    at: tuple[int, ...]
    by_start: tuple[float, ...]
    by_end: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """A run that turned worse on its way, by the order in which its requests were started.

    `measure` says in what: the value, or answers that are empty, repeat themselves, or are longer
    or shorter than most. `since` is the number of the first request that is worse, `noticed` that
    of the one at which there was no doubt left, counted from 1. `before` and `after` are the shares
    of bad answers before `since` and from it on. `started_s` is when that request was started, in
    seconds since 1970 in UTC. `counted` says which answers are bad, and of which prompts, where a
    reference decides it; both shares are among those then, and the numbers still of all requests.
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
