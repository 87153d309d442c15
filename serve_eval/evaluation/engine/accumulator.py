"""What is known of each sample of a task: scores, outcomes and failures by position, and no responses."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET

from serve_eval.client.traffic import TrafficCounter
from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.engine.degradation import Course
from serve_eval.evaluation.engine.repeats import Repeated
from serve_eval.evaluation.engine.scoring import Grade, ScoredApart, try_grading
from serve_eval.evaluation.engine.scoring import score_response as score_response
from serve_eval.evaluation.engine.stability import stability
from serve_eval.evaluation.storage.executions import Executions, program_of
from serve_eval.evaluation.storage.journal import Journal, Record
from serve_eval.evaluation.storage.judgements import Judgements
from serve_eval.evaluation.storage.scores import ScoreRecord, ScoreWriter
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.forkserver import told
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
from serve_eval.stats.missing import missing_bounds

T = TypeVar("T")
_COUNTED = Score(value=0.0, outcome=Outcome.UNPARSED)
"""In the place of the score of an answer that is only counted."""
AHEAD = 16
"""Answers of a journal that are given to other processes ahead."""
MOST_ERRORS = 20
"""Different messages of a task's scorer that are kept."""
OTHER_ERRORS = "other errors"
_TRUNCATED, _STOPPED_IN_REASONING, _REPETITIVE = 1, 2, 4
_TAIL, _LOOP, _TIMES = 400, 20, 6
"""An answer goes in circles when its last characters stand so often within its tail."""
_BLOCK = 4096
"""Samples of an order that are looked at together for a gap."""


def _repetitive(text: str) -> bool:
    return len(text) >= _TAIL and text.count(text[-_LOOP:], len(text) - _TAIL) >= _TIMES


class Tally:
    """Scores every response once, when it comes from the endpoint or out of the journal, and keeps what it was worth in
    flat arrays: some twenty bytes per sample. Writes each score to `scores` if given. With `repeats` every
    sample is there so many times, see `Repeated`.

    Answers of a task that runs them are scored by what that gave, out of `executions`, and those of a task that asks
    judges by what they said, out of `judgements`; without them, as long as answers come, they are counted and not
    scored. Of whom too little could be read has no score: that is a failure. So is an answer on which the scorer raises
    or takes too long; with `apart` it is scored in another process.
    """

    _OUTCOMES: Final = {outcome: code for code, outcome in enumerate(Outcome, 1)}
    _KINDS: Final = {kind: code for code, kind in enumerate(FailureKind, 1)}
    _UNSCORED: Final = _KINDS[FailureKind.SCORER_ERROR]

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
        self._executions, self._judgements = executions, judgements
        self._counts_only = (task.program is not None and executions is None) or (
            task.questions is not None and judgements is None
        )
        self.task, self.repeats, self._scores = task, repeats, scores
        self._apart = None if self._counts_only else apart
        self._being_scored: dict[int, Response] = {}
        self._scorer_errors: dict[int, str] = {}
        self._said: dict[str, str] = {}
        self.samples = samples = samples if repeats == 1 else Repeated(samples, repeats)
        self._answers = array("q", bytes(8 * len(samples))) if repeats > 1 else None
        self._values = array("d", bytes(8 * len(samples)))
        self._parts: dict[str, array[float]] = {}
        self._outcome = bytearray(len(samples))
        self._failure = bytearray(len(samples))
        self._retryable = bytearray(len(samples))
        self._flags = bytearray(len(samples))
        self._started = array("d", bytes(8 * len(samples)))
        self._ended = array("d", bytes(8 * len(samples)))
        self._lengths = array("i", bytes(4 * len(samples)))
        self._traffic = TrafficCounter()
        self._modes: Counter[str] = Counter()
        self._mode_names: list[str] = []
        self._mode_of = array("H", bytes(2 * len(samples) if task.failure_mode is not None else 0))
        self.scored, self.failed, self._sum = 0, 0, 0.0
        self.forgot = False

    async def take_result(self, i: int, result: Response | Failure) -> None:
        """As `add`, but the scoring of an answer is waited for where it is done in another process."""
        graded = None
        if self._apart is not None and (future := self.scoring(i, result)) is not None:
            assert isinstance(result, Response)
            self._being_scored[i] = result
            graded = await asyncio.wrap_future(future)
            if self._being_scored.pop(i, None) is not result:
                return  # it was withdrawn meanwhile
        self.add(i, result, graded)

    def scoring(self, i: int, result: Response | Failure) -> Future[Grade | Unfinished] | None:
        """The scoring of a result in another process, where it is an answer that needs it."""
        if self._apart is None or self._outcome[i] or not isinstance(result, Response):
            return None
        sample = self.samples[i]
        ready = self._looked_up(sample, result)
        return self._apart(sample, ready) if isinstance(ready, Response) else None

    def add(self, i: int, result: Response | Failure, graded: Grade | Unfinished | None = None) -> None:
        """Takes what was had for sample `i`, with its grade where that is known. A failure never replaces a response;
        a newer response changes nothing."""
        self._traffic.see(result)
        if self._outcome[i] or self._failure[i] == self._UNSCORED:
            return
        sample = self.samples[i]
        if isinstance(result, Response) and not self._counts_only:
            result = self._looked_up(sample, result)
        if isinstance(result, Failure):
            if result.kind is FailureKind.SCORER_ERROR:
                self._note_scorer_error(i, sample, Unfinished(result.message, raised="an exception"))
            self._fail(i, result.kind, retryable=result.retryable)
            return
        if self._counts_only:
            graded = _COUNTED, None
        elif graded is None:
            future = None if self._apart is None else self._apart(sample, result)
            graded = try_grading(self.task, sample, result) if future is None else future.result()
        if isinstance(graded, Unfinished):
            self._note_scorer_error(i, sample, graded)
            self._fail(i, FailureKind.SCORER_ERROR, retryable=False)
            return
        score, mode = graded
        self.failed -= bool(self._failure[i])
        self._failure[i] = 0
        self._outcome[i] = self._OUTCOMES[score.outcome]
        self._flags[i] = (
            result.truncated * _TRUNCATED
            | result.stopped_in_reasoning * _STOPPED_IN_REASONING
            | _repetitive(result.text) * _REPETITIVE
        )
        if result.attempts:
            self._started[i], self._ended[i] = result.attempts[0].start_s, result.attempts[-1].end_s
        self._lengths[i] = result.usage.completion_tokens or len(result.text)
        self._values[i] = score.value
        if self._answers is not None and score.answer is not None:
            self._answers[i] = hash(score.answer) or 1
        for name, part in score.parts.items():
            if name not in self._parts:
                self._parts[name] = array("d", bytes(8 * len(self.samples)))
            self._parts[name][i] = part
        self.scored += 1
        self._sum += score.value
        if mode is not None:
            self._count_mode(i, mode)
        if self.task.remember is not None and not self._counts_only:
            self.task.remember(sample, score)
        if self._scores is not None and not self._counts_only:
            self._scores.write(
                ScoreRecord(
                    id=sample.id,
                    outcome=score.outcome,
                    value=score.value,
                    answer=score.answer,
                    target=sample.target,
                    truncated=result.truncated,
                    parts=score.parts,
                    mode=UNSET if mode is None else mode,
                )
            )

    def forget(self, i: int, response: Response) -> None:
        """Takes the answer to sample `i` back: as if it had never come. Where it was written to the scores, its line
        stays until `ScoreFile.settle`."""
        self.forgot = True
        if self._being_scored.pop(i, None) is not None:
            return  # nothing of it was counted yet
        self._traffic.see(response, -1)
        if self._failure[i] == self._UNSCORED:
            self.failed -= 1
            self._failure[i] = 0
            self._scorer_errors.pop(i, None)
        if not self._outcome[i]:
            return
        self.scored -= 1
        self._sum -= self._values[i]
        if self._mode_of and (mode := self._mode_of[i]):
            self._modes[self._mode_names[mode - 1]] -= 1
            self._mode_of[i] = 0
        self._outcome[i] = self._flags[i] = self._lengths[i] = 0
        self._values[i] = self._started[i] = self._ended[i] = 0.0
        if self._answers is not None:
            self._answers[i] = 0
        for part in self._parts.values():
            part[i] = 0.0

    def scored_ids(self) -> Iterator[str]:
        """Yield the ids of the samples that have a score, in the order of the protocol."""
        return (sample.id for i, sample in enumerate(self.samples) if self._outcome[i])

    def _count_mode(self, i: int, mode: str) -> None:
        """Counts the way in which an answer failed, so that it can be taken back."""
        self._modes[mode] += 1
        if mode not in self._mode_names:
            self._mode_names.append(mode)
        self._mode_of[i] = self._mode_names.index(mode) + 1

    def _fail(self, i: int, kind: FailureKind, *, retryable: bool) -> None:
        self.failed += not self._failure[i]
        self._failure[i] = self._KINDS[kind]
        self._retryable[i] = retryable

    def _note_scorer_error(self, i: int, sample: Sample, why: Unfinished) -> None:
        """Keeps what a scorer raised; of a hold-out sample only the type, as messages quote what was expected."""
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

    def _looked_up(self, sample: Sample, response: Response) -> Response | Failure:
        """The answer with what running it gave and what judges said of it."""
        if self._executions is not None and (program := program_of(self.task, sample, response)) is not None:
            if isinstance(program, Unfinished):
                return Failure(kind=FailureKind.SCORER_ERROR, message=program.told, retryable=False)
            response = msgspec.structs.replace(response, ran=self._executions.result(program))
        return response if self._judgements is None else self._judgements.judged(self.task, sample, response)

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

    def score(self, i: int) -> float | None:
        """The score of sample `i`; NaN when it failed in this session, None when nothing came of it yet."""
        return self._values[i] if self._outcome[i] else math.nan if self._failure[i] else None

    def scores(self) -> array[float]:
        """The score of each sample in the order of the protocol; NaN where there is none."""
        assert not self._counts_only
        return array("d", (v if o else math.nan for v, o in zip(self._values, self._outcome, strict=True)))

    def runs(self) -> list[array[float]]:
        """The scores of each repeat in the order of the protocol; NaN where there is none."""
        scores = self.scores()
        n = len(scores) // self.repeats
        return [scores[start : start + n] for start in range(0, len(scores), n)]

    def votes(self) -> Iterator[list[tuple[int | None, float]]]:
        """For each prompt that was scored every time, what stands for its answers, with their scores."""
        assert self._answers is not None
        n = len(self.samples) // self.repeats
        for i in range(n):
            places = range(i, len(self.samples), n)
            if all(self._outcome[place] for place in places):
                yield [(self._answers[place] or None, self._values[place]) for place in places]

    def unanswered(self) -> Iterator[int]:
        """Positions of the samples without a response, failed ones included."""
        return (i for i, outcome in enumerate(self._outcome) if not outcome)

    def worth_another_pass(self) -> Iterator[int]:
        """Positions of the failed samples that a later attempt may still answer."""
        return (i for i, failure in enumerate(self._failure) if failure and self._retryable[i])

    def run_values(self) -> list[float]:
        """The value of each repeat of which something was scored, in points."""
        n = len(self.samples) // self.repeats
        rounds = [[i for i in range(start, start + n) if self._outcome[i]] for start in range(0, len(self.samples), n)]
        return [self.task.metric.scale * self.task.aggregation.of(self._pairs(places)) for places in rounds if places]

    def _scored(self) -> Iterator[int]:
        return (i for i, outcome in enumerate(self._outcome) if outcome)

    def _pairs(self, positions: Iterable[int]) -> Iterator[tuple[Sample, Score]]:
        """Samples with their scores, whose answers are not kept."""
        outcomes = {code: outcome for outcome, code in self._OUTCOMES.items()}
        for i in positions:
            parts = {name: part[i] for name, part in self._parts.items()}
            yield self.samples[i], Score(value=self._values[i], outcome=outcomes[self._outcome[i]], parts=parts)

    def result(self, *, spared: bool = False) -> TaskResult:
        """Counts, value and bounds. Independent of the order in which the answers came.

        What has no answer counts as failed, but for what was not asked or given up when an early stop `spared` it.
        """
        assert not self._counts_only
        metric, planned, n = self.task.metric, len(self.samples), self.scored
        aggregation, hooks = self.task.aggregation, _Hooks()
        outcomes = Counter(self._outcome)
        failures = Counter(self._failure)
        total = math.fsum(self._values[i] for i in self._scored())
        scored = ((self.samples[i], self._values[i]) for i in self._scored())
        value = None
        if n:
            plain = aggregation is MEAN
            found = total / n if plain else hooks.call("aggregation", self._aggregated, None)
            value = None if found is None else metric.scale * found
        unknown = spared or (n and value is None)
        bounds = None if unknown else hooks.call("aggregation", lambda: self._bounds(total, value), None)
        breakdown: Mapping[str, object] = {}
        secondary: Mapping[str, float] = {}
        if n:
            breakdown = hooks.call("breakdown", lambda: self.task.breakdown(scored), breakdown)
            secondary = hooks.call("secondary", lambda: self.task.secondary(self._pairs(self._scored())), secondary)
        stable = None if spared else hooks.call("aggregation", lambda: stability(self), None)
        return TaskResult(
            task=self.task.name,
            metric=metric,
            planned=planned,
            scored=n,
            failed=self.failed if spared else planned - n,
            spared=planned - n - self.failed if spared else 0,
            truncated=self._flagged(_TRUNCATED),
            stopped_in_reasoning=self._flagged(_STOPPED_IN_REASONING),
            outcomes={str(key): count for key, code in self._OUTCOMES.items() if (count := outcomes[code])},
            failures={str(key): count for key, code in self._KINDS.items() if (count := failures[code])},
            value=value,
            bounds=bounds,
            parts={
                name: metric.scale * math.fsum(part[i] for i in self._scored()) / n
                for name, part in sorted(self._parts.items())
                if n
            },
            breakdown=breakdown,
            stability=stable,
            aggregation=aggregation.name,
            secondary=secondary,
            modes=dict(sorted(((m, n) for m, n in self._modes.items() if n), key=lambda item: (-item[1], item[0]))),
            scorer_errors=tuple(self._errors_told()),
            hook_errors=tuple(hooks.errors),
        )

    def _aggregated(self) -> float:
        value = float(self.task.aggregation.of(self._pairs(self._scored())))
        if not math.isfinite(value):
            raise ServeEvalError(f"the {self.task.aggregation.name} of the scores is {value}")
        return value

    def _flagged(self, flag: int) -> int:
        return sum(flags & flag for flags in self._flags) // flag

    def fates(self) -> Iterator[tuple[str, float, bool]]:
        """Every sample with its score, NaN where it has none, and whether there was an answer without any text."""
        no_text = {self._OUTCOMES[Outcome.EMPTY], self._OUTCOMES[Outcome.REASONING_ONLY]}
        for i, outcome in enumerate(self._outcome):
            yield self.samples[i].id, self._values[i] if outcome else math.nan, outcome in no_text

    def had(self, order: Sequence[int], since: int = 0) -> int:
        """How many samples of an order are answered or failed without a gap, when the first `since` are."""
        import numpy

        outcome, failure = numpy.frombuffer(self._outcome, numpy.uint8), numpy.frombuffer(self._failure, numpy.uint8)
        for start in range(since, len(order), _BLOCK):
            places = numpy.asarray(order[start : start + _BLOCK], dtype=numpy.int64)
            missing = (outcome[places] | failure[places]) == 0
            if missing.any():
                return start + int(missing.argmax())
        return max(since, len(order))

    def course(self, planned: Sequence[int]) -> Course:
        """What came of the samples of an order that have a score, as far as all of them are answered or failed.

        `planned` is the random order of the run, and not that of the times: a sample that is asked again, since it
        failed or the run was interrupted before its answer came, is one with a long answer more often than others, and
        many of them in a row would look like an endpoint that turned worse.
        """
        import numpy

        order = numpy.asarray(planned[: self.had(planned)], dtype=numpy.int64)
        outcome = numpy.frombuffer(self._outcome, numpy.uint8)[order]
        order, outcome = order[outcome != 0], outcome[outcome != 0]
        no_text = [self._OUTCOMES[Outcome.EMPTY], self._OUTCOMES[Outcome.REASONING_ONLY]]
        flags = numpy.frombuffer(self._flags, numpy.uint8)[order]
        return Course(
            started_s=array("d", numpy.frombuffer(self._started)[order].tobytes()),
            ended_s=array("d", numpy.frombuffer(self._ended)[order].tobytes()),
            values=array("d", numpy.frombuffer(self._values)[order].tobytes()),
            lengths=array("i", numpy.frombuffer(self._lengths, numpy.intc)[order].tobytes()),
            empty=numpy.isin(outcome, no_text).tobytes(),
            repetitive=(flags & _REPETITIVE != 0).tobytes(),
            places=array("q", order.tobytes()),
        )

    def _bounds(self, total: float, value: float | None) -> tuple[float, float] | None:
        """Lowest and highest value in points. None where something is missing and the metric is unbounded or the
        aggregation not monotone."""
        metric, planned, aggregation = self.task.metric, len(self.samples), self.task.aggregation
        lo, hi = metric.lo, metric.hi
        if self.scored < planned and (lo is None or hi is None or not aggregation.monotone):
            return None
        if aggregation is not MEAN and value is not None and self.scored == planned:
            return value, value
        if aggregation is not MEAN:
            assert lo is not None
            assert hi is not None
            low, high = (aggregation.of(self._completed(worst)) for worst in (lo, hi))
        else:
            low, high = missing_bounds(total, self.scored, planned, lo or 0.0, hi or 0.0)
        return metric.scale * low, metric.scale * high

    def _completed(self, value: float) -> Iterator[tuple[Sample, Score]]:
        """Every sample with its score, those without one with `value`."""
        yield from self._pairs(self._scored())
        yield from ((self.samples[i], Score(value=value, outcome=Outcome.PARTIAL)) for i in self.unanswered())


class _Hooks:
    """Calls functions of a task that make figures of its scores; what they raise is kept and not raised."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def call(self, name: str, of: Callable[[], T], without: T) -> T:
        """Return the value of the function, and `without` where it raises."""
        try:
            return of()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            line = f"{name}: {told(error)['told']}"
            if line not in self.errors:
                self.errors.append(line)
            return without


def replay(journal: Journal, tally: Tally, *, failures_stand: bool = False) -> int:
    """Gives the tally what the journal holds; returns how many responses."""
    return 0 if journal.empty else take(journal.records(), tally, failures_stand=failures_stand)


def take(records: Iterable[Record], tally: Tally, *, failures_stand: bool = False) -> int:
    """Gives the tally these records, those of other samples left out; returns how many responses. What failed is asked
    again, and so counts in the traffic alone, unless `failures_stand`."""
    index = {sample.id: i for i, sample in enumerate(tally.samples)}
    responses = 0
    for record, graded in _graded(records, index, tally):
        i = index.get(record.id)
        if i is None:
            continue
        if record.response is not None:
            tally.add(i, record.response, graded)
            responses += 1
        elif record.failure is not None and failures_stand:
            tally.add(i, record.failure)
        elif record.failure is not None:
            tally.count(record.failure)
    return responses


def _graded(
    records: Iterable[Record], index: Mapping[str, int], tally: Tally
) -> Iterator[tuple[Record, Grade | Unfinished | None]]:
    """The records in their order, with their grades where those are had from other processes: some are asked for
    ahead, so that these have something to do."""
    ahead: deque[tuple[Record, Future[Grade | Unfinished] | None]] = deque()
    for record in records:
        i = index.get(record.id)
        future = None if record.response is None or i is None else tally.scoring(i, record.response)
        ahead.append((record, future))
        while ahead and (ahead[0][1] is None or len(ahead) > AHEAD):
            first, waited = ahead.popleft()
            yield first, None if waited is None else waited.result()
    for first, waited in ahead:
        yield first, None if waited is None else waited.result()
