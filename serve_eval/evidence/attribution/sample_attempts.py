"""Summarise the attempts of each sample: the one that counts, and the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from serve_eval.evidence.attribution.matching import HEADERS
from serve_eval.schema import Attempt, Response
from serve_eval.storage.journal import Record
from serve_eval.storage.records.traces import Served


class SampleAttempts(NamedTuple):
    """The start of the attempt that gave the result, the response, and the first attempt."""

    started_s: float
    response: Response | None
    first: Attempt


def summarise_attempts(records: Iterable[Record]) -> dict[str, SampleAttempts]:
    """Return the attempts of each sample, by its id.

    The result is the first response, or else the last failure.
    """
    found: dict[str, SampleAttempts] = {}
    for one in records:
        result, before = one.response or one.failure, found.get(one.id)
        if result is None or not result.attempts or (before and before.response is not None):
            continue
        first = before.first if before else result.attempts[0]
        found[one.id] = SampleAttempts(result.attempts[-1].start_s, one.response, first)
    return found


def find_servers(sample_id: str, attempt: Attempt) -> Served | None:
    """Return the servers of an attempt if its reply named them, be it an answer or an error."""
    if attempt.servers is None:
        return None
    return Served(
        task="",
        id=sample_id,
        started_s=attempt.start_s,
        context=attempt.servers.context,
        generation=attempt.servers.generation,
        how=HEADERS,
    )
