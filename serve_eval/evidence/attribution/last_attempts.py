"""Find the last attempts of a run's samples, and those whose servers are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from serve_eval.schema import Attempt
from serve_eval.storage.journal import Journal
from serve_eval.storage.records.traces import read_traces


class LastAttempt(NamedTuple):
    """The attempt that ended a sample, with an answer or without."""

    task: str
    sample_id: str
    attempt: Attempt
    answered: bool

    @property
    def key(self) -> tuple[str, str, float]:
        """The task, the sample and the start, as `read_known` returns them."""
        return self.task, self.sample_id, self.attempt.start_s


def list_last_attempts(journals: Mapping[str, Journal], part: bytes = b"") -> Iterator[LastAttempt]:
    """Yield the last attempt of each outcome in the journals, which are by task.

    Skips records without `part`, and choices, since each has its own requests.
    """
    for task, journal in journals.items():
        for kept in journal.records(part):
            result = kept.response or kept.failure
            if result is None or not result.attempts:
                continue
            if kept.response is None or kept.response.choice_logprobs is None:
                answered = kept.response is not None
                yield LastAttempt(task, kept.id, result.attempts[-1], answered)


def read_known(folder: Path) -> set[tuple[str, str, float]]:
    """Return the attempts whose servers are known, by task, sample and start."""
    lines = (
        one
        for of_task in (read_traces(folder) or {}).values()
        for ones in of_task.values()
        for one in ones
    )
    return {(one.task, one.id, one.started_s) for one in lines}
