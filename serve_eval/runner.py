"""One task against one client: a fixed pool of workers over one iterator, a journal, a TaskResult at the end."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Protocol

import msgspec

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError
from serve_eval.journal import Journal, Record
from serve_eval.schema import (
    Failure,
    FailureKind,
    Outcome,
    Request,
    Response,
    Sample,
    Score,
    Task,
    TaskResult,
)
from serve_eval.stats.missing import missing_bounds

DEAD_AFTER = 16
"""So many failures of one kind in a row, from the start or by lost connections, and the endpoint is given up."""


class Progress(Protocol):
    """Told how a task goes. The library itself never prints."""

    def begin(self, task: str, planned: int, had: int) -> None: ...

    def update(self, done: int, failed: int, value: float | None) -> None: ...

    def end(self) -> None: ...


def score_response(task: Task, sample: Sample, response: Response) -> Score:
    """The score of an answer. Without any text there is nothing for the task's scorer to read: the outcome says why."""
    if response.text.strip() or not task.metric.higher_is_better:
        return task.score(sample, response)
    if response.refusal or response.finish_reason == "content_filter":
        outcome = Outcome.REFUSED
    else:
        outcome = Outcome.REASONING_ONLY if response.reasoning else Outcome.EMPTY
    return Score(value=task.metric.lo or 0.0, outcome=outcome)


class Tally:
    """What is known of each sample of a task, in flat arrays by position: it holds no responses.

    Scores every response once, when it comes from the endpoint or out of the journal, and writes the score to `scores`
    (JSON lines) if given.
    """

    _OUTCOMES = tuple(Outcome)
    _KINDS = tuple(FailureKind)

    def __init__(self, task: Task, samples: Sequence[Sample], scores: IO[bytes] | None = None) -> None:
        self.task, self.samples, self._scores = task, samples, scores
        self.index = {sample.id: i for i, sample in enumerate(samples)}
        self._values = array("d", [math.nan]) * len(samples)
        self._parts: dict[str, array[float]] = {}
        self._outcome = bytearray(len(samples))
        self._failure = bytearray(len(samples))
        self._retryable = bytearray(len(samples))
        self._truncated = bytearray(len(samples))
        self.scored, self.failed, self._sum = 0, 0, 0.0

    def add(self, i: int, result: Response | Failure) -> None:
        """Takes what was had for sample `i`. A failure never replaces a response; a newer response changes nothing."""
        if self._outcome[i]:
            return
        if isinstance(result, Failure):
            self.failed += not self._failure[i]
            self._failure[i] = 1 + self._KINDS.index(result.kind)
            self._retryable[i] = result.retryable
            return
        sample = self.samples[i]
        score = score_response(self.task, sample, result)
        self.failed -= bool(self._failure[i])
        self._failure[i] = 0
        self._outcome[i] = 1 + self._OUTCOMES.index(score.outcome)
        self._truncated[i] = result.truncated
        self._values[i] = score.value
        for name, part in score.parts.items():
            self._parts.setdefault(name, array("d", [0.0]) * len(self.samples))[i] = part
        self.scored += 1
        self._sum += score.value
        if self._scores is not None:
            line = {"id": sample.id, "outcome": score.outcome, "value": score.value, "answer": score.answer}
            line |= {"target": sample.target, "truncated": result.truncated, "parts": score.parts}
            self._scores.write(msgspec.json.encode(line) + b"\n")

    @property
    def running_value(self) -> float | None:
        """The mean so far in points, for display."""
        return self.task.metric.scale * self._sum / self.scored if self.scored else None

    def unanswered(self) -> list[int]:
        """Positions of the samples without a response, failed ones included."""
        return [i for i, outcome in enumerate(self._outcome) if not outcome]

    def worth_another_pass(self) -> list[int]:
        """Positions of the failed samples that a later attempt may still answer."""
        return [i for i, failure in enumerate(self._failure) if failure and self._retryable[i]]

    def result(self) -> TaskResult:
        """Counts, value and bounds. Independent of the order in which the answers came."""
        metric = self.task.metric
        had = [i for i, outcome in enumerate(self._outcome) if outcome]
        samples, values = [self.samples[i] for i in had], [self._values[i] for i in had]
        outcomes = Counter(self._OUTCOMES[self._outcome[i] - 1] for i in had)
        failures = Counter(self._KINDS[code - 1] for code in self._failure if code)
        return TaskResult(
            task=self.task.name,
            metric=metric,
            planned=len(self.samples),
            scored=len(had),
            failed=len(self.samples) - len(had),
            truncated=sum(self._truncated),
            outcomes={str(key): outcomes[key] for key in Outcome if outcomes[key]},
            failures={str(key): failures[key] for key in FailureKind if failures[key]},
            value=metric.scale * math.fsum(values) / len(had) if had else None,
            bounds=self._bounds(values),
            parts={
                name: metric.scale * math.fsum(part[i] for i in had) / len(had)
                for name, part in sorted(self._parts.items())
                if had
            },
            breakdown=self.task.breakdown(samples, values) if had else {},
        )

    def _bounds(self, values: list[float]) -> tuple[float, float] | None:
        """Lowest and highest value in points; None for an unbounded metric of which something is missing."""
        metric, planned = self.task.metric, len(self.samples)
        complete = len(values) == planned
        if not complete and (metric.lo is None or metric.hi is None):
            return None
        low, high = missing_bounds(math.fsum(values), len(values), planned, metric.lo or 0.0, metric.hi or 0.0)
        return metric.scale * low, metric.scale * high


def replay(journal: Journal, tally: Tally) -> int:
    """Gives the tally every response of the journal; returns how many. Failures are left out: they are asked again."""
    responses = 0
    for record in journal.records():
        i = tally.index.get(record.id)
        if i is not None and record.response is not None:
            tally.add(i, record.response)
            responses += 1
    return responses


class Watch:
    """Notices that the endpoint as a whole is gone or refuses everything."""

    def __init__(self, *, answered: bool) -> None:
        self._answered, self._row, self._last = answered, 0, ("", 0)

    def see(self, result: Response | Failure) -> None:
        """Raises EndpointError after DEAD_AFTER equal failures: at the start of any kind, later of lost connections."""
        if isinstance(result, Response):
            self._answered, self._row = True, 0
            return
        kind = (result.kind.value, result.status or 0)
        self._row = self._row + 1 if kind == self._last else 1
        self._last = kind
        if self._row >= DEAD_AFTER and (not self._answered or result.kind is FailureKind.DISCONNECTED):
            raise EndpointError(
                f"the endpoint {'stopped answering' if self._answered else 'refuses every request'}: "
                f"{self._row} samples in a row failed, the last with: {result.message}",
                hint="Answers that were had are kept: run the same command again when the cause is mended.",
            )


async def ask(
    tally: Tally,
    positions: Iterable[int],
    client: Client,
    journal: Journal,
    *,
    concurrency: int,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> None:
    """Asks the samples at these positions with a fixed pool of workers.

    A sample counts as had when its record was written. Raises EndpointError when `watch` gives the endpoint up, and
    JournalError when a record cannot be written; requests in flight are then cancelled.
    """
    task, samples = tally.task, tally.samples
    remaining: Iterator[int] = iter(positions)

    async def worker() -> None:
        for i in remaining:
            sample = samples[i]
            request = Request(sample_id=sample.id, prompt=sample.prompt, sampling=task.sampling, extra=task.extra)
            result = await client.send(request)
            if isinstance(result, Response):
                journal.append(Record(id=sample.id, response=result))
            else:
                journal.append(Record(id=sample.id, failure=result))
            tally.add(i, result)
            if progress is not None:
                progress.update(tally.scored, tally.failed, tally.running_value)
            if watch is not None:
                watch.see(result)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(concurrency, len(samples))):
                workers.create_task(worker())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
