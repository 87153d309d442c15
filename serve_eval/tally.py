"""What is known of each sample of a task: scores, outcomes and failures by position, and no responses."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from serve_eval.degradation import Course
from serve_eval.executions import Executions, program_of
from serve_eval.journal import Journal, Record
from serve_eval.judgements import Judgements
from serve_eval.repeats import Repeated, stability
from serve_eval.schema import MEAN, Failure, FailureKind, Outcome, Response, Sample, Score, Task, TaskResult, Traffic
from serve_eval.stats.missing import missing_bounds
from serve_eval.traffic import TrafficCounter

_encode = msgspec.json.Encoder().encode
_COUNTED = Score(value=0.0, outcome=Outcome.UNPARSED)
"""In the place of the score of an answer that is only counted."""
_TRUNCATED, _STOPPED_IN_REASONING, _REPETITIVE = 1, 2, 4
_TAIL, _LOOP, _TIMES = 400, 20, 6
"""An answer goes in circles when its last characters stand so often within its tail."""


def _repetitive(text: str) -> bool:
    return len(text) >= _TAIL and text.count(text[-_LOOP:], len(text) - _TAIL) >= _TIMES


def score_response(task: Task, sample: Sample, response: Response) -> Score:
    """The score of an answer. Without any text or tool call most tasks' scorers have nothing to read: the outcome says
    why."""
    told = response.prompt_logprobs is not None or response.choice_logprobs is not None or response.tool_calls
    if response.text.strip() or told or not task.metric.higher_is_better:
        return task.score(sample, response)
    if response.refusal or response.finish_reason == "content_filter":
        outcome = Outcome.REFUSED
    else:
        outcome = Outcome.REASONING_ONLY if response.reasoning else Outcome.EMPTY
    if task.judges_empty:
        score = task.score(sample, response)
        nothing = score.outcome in (Outcome.WRONG, Outcome.UNPARSED)
        return msgspec.structs.replace(score, outcome=outcome) if nothing else score
    return Score(value=task.metric.lo or 0.0, outcome=outcome)


class Lines(Protocol):
    """Where scores are written to, such as a file: one JSON line at a time."""

    def write(self, line: bytes, /) -> object: ...


class Tally:
    """Scores every response once, when it comes from the endpoint or out of the journal, and keeps what it was worth in
    flat arrays: some twenty bytes per sample. Writes each score to `scores` (JSON lines) if given. With `repeats` every
    sample is there so many times, see `Repeated`.

    Answers of a task that runs them are scored by what that gave, out of `executions`, and those of a task that asks
    judges by what they said, out of `judgements`; without them, as long as answers come, they are counted and not
    scored. Of whom too little could be read has no score: that is a failure.
    """

    _OUTCOMES: Final = {outcome: code for code, outcome in enumerate(Outcome, 1)}
    _KINDS: Final = {kind: code for code, kind in enumerate(FailureKind, 1)}

    def __init__(
        self,
        task: Task,
        samples: Sequence[Sample],
        scores: Lines | None = None,
        *,
        repeats: int = 1,
        executions: Executions | None = None,
        judgements: Judgements | None = None,
    ) -> None:
        self._executions, self._judgements = executions, judgements
        self._counts_only = (task.program is not None and executions is None) or (
            task.questions is not None and judgements is None
        )
        self.task, self.repeats, self._scores = task, repeats, scores
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
        self.scored, self.failed, self._sum = 0, 0, 0.0

    def add(self, i: int, result: Response | Failure) -> None:
        """Takes what was had for sample `i`. A failure never replaces a response; a newer response changes nothing."""
        self._traffic.see(result)
        if self._outcome[i]:
            return
        sample = self.samples[i]
        if isinstance(result, Response) and not self._counts_only:
            result = self._looked_up(sample, result)
        if isinstance(result, Failure):
            self.failed += not self._failure[i]
            self._failure[i] = self._KINDS[result.kind]
            self._retryable[i] = result.retryable
            return
        score = _COUNTED if self._counts_only else score_response(self.task, sample, result)
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
        mode = self._mode(sample, result, score)
        if self._scores is not None and not self._counts_only:
            line: dict[str, object] = {
                "id": sample.id,
                "outcome": score.outcome,
                "value": score.value,
                "answer": score.answer,
                "target": sample.target,
                "truncated": result.truncated,
                "parts": score.parts,
            }
            if mode is not None:
                line["mode"] = mode
            self._scores.write(_encode(line) + b"\n")

    def _mode(self, sample: Sample, response: Response, score: Score) -> str | None:
        """In which way an answer failed, counted; None for one that did not, and where the task does not tell."""
        if self.task.failure_mode is None or score.outcome is Outcome.CORRECT or self._counts_only:
            return None
        mode = self.task.failure_mode(sample, response, score)
        self._modes[mode] += 1
        return mode

    def _looked_up(self, sample: Sample, response: Response) -> Response | Failure:
        """The answer with what running it gave and what judges said of it."""
        if self._executions is not None and (program := program_of(self.task, sample, response)) is not None:
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
        aggregation = self.task.aggregation
        outcomes = Counter(self._outcome)
        failures = Counter(self._failure)
        total = math.fsum(self._values[i] for i in self._scored())
        scored = ((self.samples[i], self._values[i]) for i in self._scored())
        value = None
        if n:
            plain = aggregation is MEAN
            value = metric.scale * (total / n if plain else aggregation.of(self._pairs(self._scored())))
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
            bounds=None if spared else self._bounds(total, value),
            parts={
                name: metric.scale * math.fsum(part[i] for i in self._scored()) / n
                for name, part in sorted(self._parts.items())
                if n
            },
            breakdown=self.task.breakdown(scored) if n else {},
            stability=None if spared else stability(self),
            aggregation=aggregation.name,
            secondary=self.task.secondary(self._pairs(self._scored())) if n else {},
            modes=dict(self._modes.most_common()),
        )

    def _flagged(self, flag: int) -> int:
        return sum(flags & flag for flags in self._flags) // flag

    def fates(self) -> Iterator[tuple[str, float, bool]]:
        """Every sample with its score, NaN where it has none, and whether there was an answer without any text."""
        no_text = {self._OUTCOMES[Outcome.EMPTY], self._OUTCOMES[Outcome.REASONING_ONLY]}
        for i, outcome in enumerate(self._outcome):
            yield self.samples[i].id, self._values[i] if outcome else math.nan, outcome in no_text

    def had(self, order: Sequence[int], since: int = 0) -> int:
        """How many samples of an order are answered or failed without a gap, when the first `since` are."""
        while since < len(order) and (self._outcome[order[since]] or self._failure[order[since]]):
            since += 1
        return since

    def course(self, planned: Sequence[int]) -> Course:
        """What came of the samples of an order that have a score, as far as all of them are answered or failed.

        `planned` is the random order of the run, and not that of the times: a sample that is asked again, since it
        failed or the run was interrupted before its answer came, is one with a long answer more often than others, and
        many of them in a row would look like an endpoint that turned worse.
        """
        order = [i for i in planned[: self.had(planned)] if self._outcome[i]]
        no_text = {self._OUTCOMES[Outcome.EMPTY], self._OUTCOMES[Outcome.REASONING_ONLY]}
        return Course(
            started_s=array("d", (self._started[i] for i in order)),
            ended_s=array("d", (self._ended[i] for i in order)),
            values=array("d", (self._values[i] for i in order)),
            lengths=array("i", (self._lengths[i] for i in order)),
            empty=bytes(self._outcome[i] in no_text for i in order),
            repetitive=bytes(self._flags[i] & _REPETITIVE != 0 for i in order),
            places=array("q", order),
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


def replay(journal: Journal, tally: Tally, *, failures_stand: bool = False) -> int:
    """Gives the tally what the journal holds; returns how many responses."""
    return 0 if journal.empty else take(journal.records(), tally, failures_stand=failures_stand)


def take(records: Iterable[Record], tally: Tally, *, failures_stand: bool = False) -> int:
    """Gives the tally these records, those of other samples left out; returns how many responses. What failed is asked
    again, and so counts in the traffic alone, unless `failures_stand`."""
    index = {sample.id: i for i, sample in enumerate(tally.samples)}
    responses = 0
    for record in records:
        i = index.get(record.id)
        if i is None:
            continue
        if record.response is not None:
            tally.add(i, record.response)
            responses += 1
        elif record.failure is not None and failures_stand:
            tally.add(i, record.failure)
        elif record.failure is not None:
            tally.count(record.failure)
    return responses
