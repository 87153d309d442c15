"""Score the answers of a task as they come, and keep what each was worth."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import msgspec
from msgspec import UNSET

from serve_eval.client.traffic import TrafficCounter
from serve_eval.evaluation.results.sample_table import (
    FAILURE_CODES,
    OUTCOME_CODES,
    REPETITIVE,
    STOPPED_IN_REASONING,
    TRUNCATED,
    SampleTable,
)
from serve_eval.evaluation.results.scoring import Grade, ScoredApart, try_grading
from serve_eval.evaluation.results.scoring import score_response as score_response
from serve_eval.evaluation.results.task_result import task_result
from serve_eval.evaluation.storage.records.executions import Executions, program_of
from serve_eval.evaluation.storage.records.judgements import Judgements
from serve_eval.evaluation.storage.records.scores import ScoreRecord, ScoreWriter
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import (
    HOLDOUT,
    MEAN,
    Failure,
    FailureKind,
    Outcome,
    Response,
    Sample,
    Score,
    ScorerError,
    Task,
    TaskResult,
    Traffic,
)

_COUNTED = Score(value=0.0, outcome=Outcome.UNPARSED)
"""In the place of the score of an answer that is only counted."""
MOST_ERRORS = 20
"""Different messages of a task's scorer that are kept."""
OTHER_ERRORS = "other errors"
_TAIL, _LOOP, _TIMES = 400, 20, 6
"""An answer goes in circles when its last characters stand so often within its tail."""
_UNSCORED = FAILURE_CODES[FailureKind.SCORER_ERROR]


def _repetitive(text: str) -> bool:
    return len(text) >= _TAIL and text.count(text[-_LOOP:], len(text) - _TAIL) >= _TIMES


class ScoreAccumulator(SampleTable):
    """Scores every response once, when it comes from the endpoint or out of the journal, and keeps
    what it was worth. Writes each score to `scores` if given. With `repeats` every sample is there
    so many times.

    Answers of a task that runs them are scored by what that gave, out of `executions`, and those of
    a task that asks judges by what they said, out of `judgements`; without them, as long as answers
    come, they are counted and not scored. Of whom too little could be read has no score: that is a
    failure. So is an answer on which the scorer raises or takes too long; with `apart` it is scored
    in another process.
    """

    def __init__(
        self,
        task: Task,
        samples: Sequence[Sample],
        scores: ScoreWriter | None = None,
        *,
        repeats: int = 1,
        executions: Executions | None = None,
        judgements: Judgements | None = None,
        apart: ScoredApart | None = None,
    ) -> None:
        super().__init__(task, samples, repeats)
        self._executions, self._judgements = executions, judgements
        self._counts_only = (task.program is not None and executions is None) or (
            task.questions is not None and judgements is None
        )
        self._scores = scores
        self._apart = None if self._counts_only else apart
        self._being_scored: dict[int, Response] = {}
        self._scorer_errors: dict[int, str] = {}
        self._said: dict[str, str] = {}
        self._traffic = TrafficCounter()
        self._modes: Counter[str] = Counter()
        self._mode_names: list[str] = []
        self._mode_of = array(
            "H", bytes(2 * len(self.samples) if task.failure_mode is not None else 0)
        )
        self._sum = 0.0
        self.forgot = False

    async def take_result(self, i: int, result: Response | Failure) -> None:
        """As `add`, but the scoring of an answer is waited for where it is done in another
        process.
        """
        graded = None
        if self._apart is not None and (future := self.start_scoring(i, result)) is not None:
            assert isinstance(result, Response)
            self._being_scored[i] = result
            graded = await asyncio.wrap_future(future)
            if self._being_scored.pop(i, None) is not result:
                return  # it was withdrawn meanwhile
        self.add(i, result, graded)

    def start_scoring(
        self, i: int, result: Response | Failure
    ) -> Future[Grade | Unfinished] | None:
        """The scoring of a result in another process, where it is an answer that needs it."""
        if self._apart is None or self.outcomes[i] or not isinstance(result, Response):
            return None
        sample = self.samples[i]
        ready = self._look_up(sample, result)
        return self._apart(sample, ready) if isinstance(ready, Response) else None

    def add(
        self, i: int, result: Response | Failure, graded: Grade | Unfinished | None = None
    ) -> None:
        """Takes what was had for sample `i`, with its grade where that is known. A failure never
        replaces a response; a newer response changes nothing.
        """
        self._traffic.see(result)
        if self.outcomes[i] or self.failures[i] == _UNSCORED:
            return
        sample = self.samples[i]
        if isinstance(result, Response) and not self._counts_only:
            result = self._look_up(sample, result)
        if isinstance(result, Failure):
            self._take_failure(i, sample, result)
            return
        graded = self._grade(sample, result, graded)
        if isinstance(graded, Unfinished):
            self._note_scorer_error(i, sample, graded)
            self._fail(i, FailureKind.SCORER_ERROR, retryable=False)
            return
        self._take_answer(i, sample, result, *graded)

    def _take_failure(self, i: int, sample: Sample, failure: Failure) -> None:
        """Count a sample without an answer, or without a score."""
        if failure.kind is FailureKind.SCORER_ERROR:
            self._note_scorer_error(i, sample, Unfinished(failure.message, raised="an exception"))
        self._fail(i, failure.kind, retryable=failure.retryable)

    def _grade(
        self, sample: Sample, response: Response, graded: Grade | Unfinished | None
    ) -> Grade | Unfinished:
        """Return the grade that is known, else score the answer here or in the process for it."""
        if self._counts_only:
            return _COUNTED, None
        if graded is not None:
            return graded
        future = None if self._apart is None else self._apart(sample, response)
        return try_grading(self.task, sample, response) if future is None else future.result()

    def _take_answer(
        self, i: int, sample: Sample, response: Response, score: Score, mode: str | None
    ) -> None:
        """Count a scored answer in every column, and keep its score."""
        self.failed -= bool(self.failures[i])
        self.failures[i] = 0
        self.outcomes[i] = OUTCOME_CODES[score.outcome]
        self.flags[i] = (
            response.truncated * TRUNCATED
            | response.stopped_in_reasoning * STOPPED_IN_REASONING
            | _repetitive(response.text) * REPETITIVE
        )
        if response.attempts:
            self.started[i], self.ended[i] = (
                response.attempts[0].start_s,
                response.attempts[-1].end_s,
            )
        self.lengths[i] = response.usage.completion_tokens or len(response.text)
        self.values[i] = score.value
        if self.answers is not None and score.answer is not None:
            self.answers[i] = hash(score.answer) or 1
        for name, part in score.parts.items():
            if name not in self.parts:
                self.parts[name] = array("d", bytes(8 * len(self.samples)))
            self.parts[name][i] = part
        self.scored += 1
        self._sum += score.value
        if mode is not None:
            self._count_mode(i, mode)
        if not self._counts_only:
            self._keep_score(sample, response, score, mode)

    def _keep_score(
        self, sample: Sample, response: Response, score: Score, mode: str | None
    ) -> None:
        """Hand a score to the task that remembers it, and to the file of scores."""
        if self.task.remember is not None:
            self.task.remember(sample, score)
        if self._scores is not None:
            self._scores.write(
                ScoreRecord(
                    id=sample.id,
                    outcome=score.outcome,
                    value=score.value,
                    answer=score.answer,
                    target=sample.target,
                    truncated=response.truncated,
                    parts=score.parts,
                    mode=UNSET if mode is None else mode,
                )
            )

    def forget(self, i: int, response: Response) -> None:
        """Takes the answer to sample `i` back: as if it had never come. Where it was written to the
        scores, its line stays until `ScoreFile.settle`.
        """
        self.forgot = True
        if self._being_scored.pop(i, None) is not None:
            return  # nothing of it was counted yet
        self._traffic.see(response, -1)
        if self.failures[i] == _UNSCORED:
            self.failed -= 1
            self.failures[i] = 0
            self._scorer_errors.pop(i, None)
        if not self.outcomes[i]:
            return
        self.scored -= 1
        self._sum -= self.values[i]
        if self._mode_of and (mode := self._mode_of[i]):
            self._modes[self._mode_names[mode - 1]] -= 1
            self._mode_of[i] = 0
        self.outcomes[i] = self.flags[i] = self.lengths[i] = 0
        self.values[i] = self.started[i] = self.ended[i] = 0.0
        if self.answers is not None:
            self.answers[i] = 0
        for part in self.parts.values():
            part[i] = 0.0

    def list_scored_ids(self) -> Iterator[str]:
        """Yield the ids of the samples that have a score, in the order of the protocol."""
        return (sample.id for i, sample in enumerate(self.samples) if self.outcomes[i])

    def _count_mode(self, i: int, mode: str) -> None:
        """Counts the way in which an answer failed, so that it can be taken back."""
        self._modes[mode] += 1
        if mode not in self._mode_names:
            self._mode_names.append(mode)
        self._mode_of[i] = self._mode_names.index(mode) + 1

    def _fail(self, i: int, kind: FailureKind, *, retryable: bool) -> None:
        self.failed += not self.failures[i]
        self.failures[i] = FAILURE_CODES[kind]
        self.retryable[i] = retryable

    def _note_scorer_error(self, i: int, sample: Sample, why: Unfinished) -> None:
        """Keeps what a scorer raised; of a hold-out sample only the type, as messages quote what
        was expected.
        """
        hidden = HOLDOUT in sample.metadata and why.raised is not None
        said = str(why.raised) if hidden else f"{why.told}. {why.hint}" if why.hint else why.told
        if said not in self._said and len(self._said) >= MOST_ERRORS:
            said = OTHER_ERRORS
        self._scorer_errors[i] = self._said.setdefault(said, said)

    def _errors_told(self) -> Iterator[ScorerError]:
        """Yield the errors of scorers, the most frequent first."""
        counts = Counter(self._scorer_errors.values())
        first: dict[str, int] = {}
        for i, said in self._scorer_errors.items():
            first[said] = min(i, first.get(said, i))
        for said, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            yield ScorerError(told=said, count=count, sample=self.samples[first[said]].id)

    def _look_up(self, sample: Sample, response: Response) -> Response | Failure:
        """The answer with what running it gave and what judges said of it."""
        if (
            self._executions is not None
            and (program := program_of(self.task, sample, response)) is not None
        ):
            if isinstance(program, Unfinished):
                return Failure(kind=FailureKind.SCORER_ERROR, message=program.told, retryable=False)
            response = msgspec.structs.replace(response, ran=self._executions.result(program))
        return (
            response
            if self._judgements is None
            else self._judgements.apply(self.task, sample, response)
        )

    def count(self, earlier: Failure) -> None:
        """Takes a failure of an earlier session, whose sample is asked again."""
        self._traffic.see(earlier)

    @property
    def running_value(self) -> float | None:
        """The mean so far in points, for display; None where the value is none."""
        if not self.scored or self._counts_only or self.task.aggregation is not MEAN:
            return None
        return self.task.metric.scale * self._sum / self.scored

    @property
    def traffic(self) -> Traffic:
        """What it took so far."""
        return self._traffic.traffic()

    def result(self, *, spared: bool = False) -> TaskResult:
        """Return counts, value and bounds. Independent of the order in which the answers came.

        What has no answer counts as failed, but for what was not asked or given up when an early
        stop `spared` it.
        """
        assert not self._counts_only
        return task_result(self, self._modes, tuple(self._errors_told()), spared=spared)

    def scores(self) -> array[float]:
        """Return the score of each sample in the order of the protocol; NaN where there is none."""
        assert not self._counts_only
        return super().scores()
