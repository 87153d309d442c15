"""Score the answers of a task as they come, and keep their scores."""

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
    CUT_FLAGS,
    FAILURE_CODES,
    LOOPING,
    LOST,
    OUTCOME_CODES,
    REPAIRED,
    REPETITIVE,
    RESTARTED,
    STOPPED_IN_REASONING,
    TRUNCATED,
    UNLISTED_FINISH,
    SampleTable,
)
from serve_eval.evaluation.results.scoring import (
    Grade,
    ScoredApart,
    ScorerErrors,
    try_grading,
)
from serve_eval.evaluation.results.task_result import UnlistedFinishes, task_result
from serve_eval.evidence.whole_answer import hash_answer
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.forkserver import describe_error
from serve_eval.schema import (
    MEAN,
    Cut,
    Failure,
    FailureKind,
    Outcome,
    Response,
    Sample,
    Score,
    Task,
    TaskResult,
    Traffic,
    find_cut,
    find_lost,
)
from serve_eval.storage.assessments import Executions, Judgements, program_of
from serve_eval.storage.scores import ScoreRecord, ScoreWriter

_COUNTED = Score(value=0.0, outcome=Outcome.UNPARSED)
"""Replaces the score of an answer that is only counted."""
_TAIL, _LOOP, _TIMES = 400, 20, 6
"""An answer is repetitive if its last _LOOP characters occur _TIMES times in its last _TAIL."""
_UNSCORED = FAILURE_CODES[FailureKind.SCORER_ERROR]


def _find_cut(task: Task, sample: Sample, response: Response, score: Score) -> Cut | None:
    own = sample.override
    asked = task.sampling if own is None else own.limit(task.sampling)
    return find_cut(response, score.outcome, asked)


def _repetitive(text: str) -> bool:
    return len(text) >= _TAIL and text.count(text[-_LOOP:], len(text) - _TAIL) >= _TIMES


class ScoreAccumulator(SampleTable):
    """Score every response once, from the endpoint or from the journal, and keep the result.

    Writes each score to `scores` if given. With `repeats`, every sample occurs that number of
    times. Answers of a task that runs them are scored by the results in `executions`, and those of
    a task that asks judges by `judgements`. Without these, while answers come, they are only
    counted. An answer with too few readable judgements has no score and counts as a failure. So
    does an answer on which the scorer raises or exceeds its time limit. With `apart`, answers are
    scored in another process. A finish_reason in `known_finishes` ends a whole answer.
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
        known_finishes: Sequence[str] = (),
    ) -> None:
        super().__init__(task, samples, repeats)
        self._executions, self._judgements = executions, judgements
        self._counts_only = (task.program is not None and executions is None) or (
            task.questions is not None and judgements is None
        )
        self._looks_up = not self._counts_only and (
            executions is not None or judgements is not None
        )
        self._scores = scores
        self._apart = None if self._counts_only else apart
        self._being_scored: dict[int, Response] = {}
        self._scorer_errors = ScorerErrors()
        self._finishes = UnlistedFinishes(known_finishes, len(self.samples))
        self._traffic = TrafficCounter()
        self._modes: Counter[str] = Counter()
        self._mode_names: list[str] = []
        self._mode_of = array(
            "H", bytes(2 * len(self.samples) if task.failure_mode is not None else 0)
        )
        self._sum = 0.0
        self.forgot = False

    @property
    def scores_here(self) -> bool:
        """True if no other process computes scores, so that `add` never waits."""
        return self._apart is None

    async def take_result(
        self, i: int, result: Response | Failure, sample: Sample | None = None
    ) -> None:
        """Add a result as `add` does. Wait for the score if it is computed in another process."""
        graded = None
        if self._apart is not None and (future := self.start_scoring(i, result)) is not None:
            assert isinstance(result, Response)
            self._being_scored[i] = result
            graded = await asyncio.wrap_future(future)
            if self._being_scored.pop(i, None) is not result:
                return  # the answer was withdrawn meanwhile
        self.add(i, result, graded, sample)

    def start_scoring(
        self, i: int, result: Response | Failure
    ) -> Future[Grade | Unfinished] | None:
        """Start to score a result in another process. Return None if it does not need that."""
        if self._apart is None or self.outcomes[i] or not isinstance(result, Response):
            return None
        sample = self.samples[i]
        ready = self._look_up(sample, result)
        return self._apart(sample, ready) if isinstance(ready, Response) else None

    def add(
        self,
        i: int,
        result: Response | Failure,
        graded: Grade | Unfinished | None = None,
        sample: Sample | None = None,
    ) -> None:
        """Add the result of sample `i`, with its grade and with the sample itself if it is known.

        A failure never replaces a response, and a newer response changes nothing.
        """
        self._traffic.see(result)
        if self.outcomes[i] or self.failures[i] == _UNSCORED:
            return
        if isinstance(result, Failure) or len(result.attempts) > 1:
            self.flags[i] |= LOST[find_lost(result.attempts)]
        if sample is None:
            sample = self.samples[i]
        if self._looks_up and isinstance(result, Response):
            result = self._look_up(sample, result)
        if isinstance(result, Failure):
            self._take_failure(i, sample, result)
            return
        graded = self._grade(sample, result, graded)
        if self.task.remember is not None:
            graded = self._remember(sample, graded)
        if isinstance(graded, Unfinished):
            self._scorer_errors.note(i, sample, graded)
            self._fail(i, FailureKind.SCORER_ERROR, retryable=False)
            return
        self._take_answer(i, sample, result, *graded)

    def _take_failure(self, i: int, sample: Sample, failure: Failure) -> None:
        """Count a sample without an answer or a score."""
        if failure.kind is FailureKind.SCORER_ERROR:
            raised = Unfinished(failure.message, raised="an exception")
            self._scorer_errors.note(i, sample, raised)
        self._fail(i, failure.kind, retryable=failure.retryable)

    def _grade(
        self, sample: Sample, response: Response, graded: Grade | Unfinished | None
    ) -> Grade | Unfinished:
        """Return the known grade, or score the answer here or in its process."""
        if self._counts_only:
            return _COUNTED, None
        if graded is not None:
            return graded
        future = None if self._apart is None else self._apart(sample, response)
        return try_grading(self.task, sample, response) if future is None else future.result()

    def _remember(self, sample: Sample, graded: Grade | Unfinished) -> Grade | Unfinished:
        """Pass a score to the task, if it remembers scores. Return the error if that raises."""
        remember = self.task.remember
        if remember is None or self._counts_only or isinstance(graded, Unfinished):
            return graded
        try:
            remember(sample, graded[0])
        except Exception as error:  # third-party code
            return Unfinished(**describe_error(error))
        return graded

    def _take_answer(
        self, i: int, sample: Sample, response: Response, score: Score, mode: str | None
    ) -> None:
        """Count a scored answer in every column and keep its score."""
        if self.failures[i]:
            self.set_failure(i, 0)
        self.outcomes[i] = OUTCOME_CODES[score.outcome]
        cut = _find_cut(self.task, sample, response, score)
        if flags := self._find_flags(i, response, cut):
            self.flags[i] |= flags
        if response.attempts:
            self.started[i], self.ended[i] = (
                response.attempts[0].start_s,
                response.attempts[-1].end_s,
            )
        self.lengths[i] = response.usage.completion_tokens or len(response.text)
        self.values[i] = score.value
        if self.answers is not None and score.answer is not None:
            self.answers[i] = hash(score.answer) or 1
        if self.texts is not None:
            self.texts[i] = hash(hash_answer(response)) or 1
        for name, part in score.parts.items():
            if name not in self.parts:
                self.parts[name] = array("d", bytes(8 * len(self.samples)))
            self.parts[name][i] = part
        self.scored += 1
        self._sum += score.value
        if mode is not None:
            self._count_mode(i, mode)
        if self._scores is not None and not self._counts_only:
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
                    group=sample.group or UNSET,
                    cut=UNSET if cut is None else cut,
                )
            )

    def _find_flags(self, i: int, response: Response, cut: Cut | None) -> int:
        """Return the flags of an answer. Notes the finish reason of one that is not listed."""
        flags = 0 if cut is None else CUT_FLAGS[cut]
        if response.truncated:
            flags |= TRUNCATED
        if response.stopped_in_reasoning:
            flags |= STOPPED_IN_REASONING
        if _repetitive(response.text):
            flags |= REPETITIVE
        if response.looping:
            flags |= LOOPING
        elif response.unlisted_finish and self._finishes.note(i, response.finish_reason):
            flags |= UNLISTED_FINISH
        return flags

    def forget(self, i: int, response: Response) -> None:
        """Remove the answer to sample `i`, as if it had never come.

        A line in the file of scores stays until `ScoreFile.settle`.
        """
        self.forgot = True
        if self._being_scored.pop(i, None) is not None:
            return  # it was not counted yet
        self._traffic.see(response, -1)
        if self.failures[i] == _UNSCORED:
            self.set_failure(i, 0)
            self._scorer_errors.forget(i)
        if not self.outcomes[i]:
            return
        self.scored -= 1
        self._sum -= self.values[i]
        if self._mode_of and (mode := self._mode_of[i]):
            self._modes[self._mode_names[mode - 1]] -= 1
            self._mode_of[i] = 0
        self._finishes.forget(i)
        self.outcomes[i] = self.lengths[i] = 0
        self.flags[i] &= REPAIRED | RESTARTED
        self.values[i] = self.started[i] = self.ended[i] = 0.0
        if self.answers is not None:
            self.answers[i] = 0
        if self.texts is not None:
            self.texts[i] = 0
        for part in self.parts.values():
            part[i] = 0.0

    def list_scored_ids(self) -> Iterator[str]:
        """Yield the ids of the samples with a score, in the order of the protocol."""
        return (sample.id for i, sample in enumerate(self.samples) if self.outcomes[i])

    def _count_mode(self, i: int, mode: str) -> None:
        """Count the way in which an answer failed, so that `forget` can undo it."""
        self._modes[mode] += 1
        if mode not in self._mode_names:
            self._mode_names.append(mode)
        self._mode_of[i] = self._mode_names.index(mode) + 1

    def _fail(self, i: int, kind: FailureKind, *, retryable: bool) -> None:
        self.set_failure(i, FAILURE_CODES[kind])
        self.retryable[i] = retryable

    def _look_up(self, sample: Sample, response: Response) -> Response | Failure:
        """Return the response with the result of running it and with its judgements."""
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

    def count(self, i: int, earlier: Failure) -> None:
        """Count the traffic of a failure of an earlier session: sample `i` is asked again."""
        self._traffic.see(earlier)
        self.flags[i] |= LOST[find_lost(earlier.attempts)]

    @property
    def running_value(self) -> float | None:
        """The mean so far in points, for display. None if the value of the task is not a mean."""
        if not self.scored or self._counts_only or self.task.aggregation is not MEAN:
            return None
        return self.task.metric.scale * self._sum / self.scored

    @property
    def traffic(self) -> Traffic:
        """Requests, tokens and times so far."""
        return self._traffic.traffic()

    def result(self, *, spared: bool = False) -> TaskResult:
        """Return counts, value and bounds, which do not depend on the order of the answers.

        A sample without an answer counts as failed. If an early stop `spared` samples, those not
        asked and those given up do not count.
        """
        assert not self._counts_only
        errors = tuple(self._scorer_errors.list(self.samples))
        return task_result(
            self, self._modes, errors, spared=spared, unlisted=self._finishes.counts()
        )

    def scores(self) -> array[float]:
        """Return the score of each sample in the order of the protocol. NaN means no score."""
        assert not self._counts_only
        return super().scores()
