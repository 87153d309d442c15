"""Find the error that ended a server, in its log.

A log has errors that the server survived and, below the one that it did not survive, pages of what
followed from it. So levels, order and what a process wrote later decide:

* A line at level warning or below is no cause, nor is one that says that the server goes on, nor an
  exception that a warning reports or that was being handled when another was raised.
* Errors that the server survived are none; candidates.py says which ones those are.
* Of the errors that are left, the first one with a known cause is the reason. Causes that servers
  often catch and those that do not say why come after the others. If none has a known cause, it is
  the first error that does not only say that something else failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from serve_eval.launchers._logs.candidates import Candidate, CandidateReader, Weight
from serve_eval.launchers._logs.causes import AT_ONCE, STILL, Cause, guess_engine, read_causes
from serve_eval.launchers._logs.growing_log import Line, clean

LONGEST = 600
"""Maximum characters of a line that is shown."""


class Explanation(NamedTuple):
    """The error that ended a server: its line, and its cause if that is known."""

    line: str
    cause: Cause | None = None


def explain(log: str, engine: str | None = None) -> Explanation | None:
    """Return the error that ended the server with this log; None if it shows none.

    `engine` is its name as in start_failures.yaml (None: guessed from the log).
    """
    engine = engine or guess_engine(log)
    lines = [clean(one.encode()) for one in re.split(r"[\r\n]+", log)]
    reader = CandidateReader(engine)
    for line in lines:
        reader.read(line)
    alive = [one for one in reader.found if not one.is_survived() and not one.follows()]
    best = min(_without_caught(alive), key=Candidate.rank, default=None)
    if best is None or (best.cause is None and best.weight is Weight.GUESSED):
        lately = [one for one in reader.found if _is_recent(one)]
        best = min(lately, key=Candidate.rank, default=best)
    whole = next((one for one in _whole(engine) if one.shows_in(log)), None)
    if best is None:
        follows = (one.line for one in reader.found if one.follows() and not one.is_survived())
        first = next(follows, "")
        return Explanation(_cut_long(first), whole) if first or whole is not None else None
    if best.cause is None:
        return Explanation(_cut_long(best.line), whole)
    if (reason := _look_below(best.cause, lines, engine)) is not None:
        return reason
    if not best.cause.vague:
        return Explanation(_cut_long(best.line), best.cause)
    errors = (one.line for one in alive if one.cause is None and one.weight is Weight.ERROR)
    return Explanation(_cut_long(next(errors, best.line)), whole or best.cause)


def cause(log: str, engine: str | None = None) -> tuple[str, str] | None:
    """Return the name of the cause that a log shows, and its remedy."""
    found = explain(log, engine)
    if found is None or found.cause is None:
        return None
    return found.cause.told, found.cause.remedy(engine or guess_engine(log))


def _without_caught(alive: list[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates without exceptions that servers often catch and that others follow."""
    for place, one in enumerate(alive):
        often_caught = one.raised and one.cause is not None and one.cause.ends == STILL
        if not often_caught or not any(_is_error_of(other, one) for other in alive[place + 1 :]):
            yield one


def _is_error_of(later: Candidate, one: Candidate) -> bool:
    """Return True for a later error of the same process without a known cause."""
    return later.cause is None and later.weight is Weight.ERROR and later.stream == one.stream


def _is_recent(one: Candidate) -> bool:
    """Return True for an error that its process may not have survived, if nothing else ended it."""
    if one.caught:  # a warning stands above it, but nothing below it
        return one.later == 0
    known = one.cause is not None and one.cause.ends == AT_ONCE and one.weight is Weight.ERROR
    return known and not one.handled


def _look_below(cause: Cause, lines: Sequence[Line], engine: str | None) -> Explanation | None:
    """Return a line, at any level, that shows the reason of a cause; None if there is none."""
    for reason in (one for one in read_causes() if cause.name in one.below):
        for line in lines if reason.can_be_of(engine) else ():
            if reason.shows_in(line.text):
                return Explanation(_cut_long(line.text), reason)
    return None


def _whole(engine: str | None) -> Iterator[Cause]:
    """Yield the causes that are seen in several lines together."""
    return (one for one in read_causes() if one.whole and one.can_be_of(engine))


def _cut_long(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."
