"""Collect the errors of a task's scorer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import HOLDOUT, Sample, ScorerError, UnscoredSample

MOST_ERRORS = 20
"""Number of different messages of a task's scorer that are kept."""
MOST_SAMPLES = 20
"""Number of samples that are kept of each message."""
OTHER_ERRORS = "other errors"


class ScorerErrors:
    """The errors of a task's scorer, by the positions of the samples."""

    def __init__(self) -> None:
        self._by_sample: dict[int, str] = {}
        self._messages: dict[str, str] = {}

    def note(self, i: int, sample: Sample, why: Unfinished) -> None:
        """Record the error of a sample.

        For a hold-out sample, keep only the type, since messages quote the expected answer.
        """
        hidden = HOLDOUT in sample.metadata and why.raised is not None
        message = str(why.raised) if hidden else f"{why.told}. {why.hint}" if why.hint else why.told
        if message not in self._messages and len(self._messages) >= MOST_ERRORS:
            message = OTHER_ERRORS
        self._by_sample[i] = self._messages.setdefault(message, message)

    def forget(self, i: int) -> None:
        """Remove the error of a sample, if it has one."""
        self._by_sample.pop(i, None)

    def list(self, samples: Sequence[Sample]) -> Iterator[ScorerError]:
        """Yield the errors, the most frequent first."""
        places: dict[str, list[int]] = {}
        for i, message in sorted(self._by_sample.items()):
            places.setdefault(message, []).append(i)
        for message, where in sorted(places.items(), key=lambda item: (-len(item[1]), item[0])):
            some = tuple(_describe(samples[i]) for i in where[:MOST_SAMPLES])
            yield ScorerError(told=message, count=len(where), sample=some[0].id, samples=some)


def _describe(sample: Sample) -> UnscoredSample:
    hidden = HOLDOUT in sample.metadata
    return UnscoredSample(id=sample.id, expected=None if hidden else sample.target)
