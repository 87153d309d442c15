"""Keep the data of each sample by position in flat arrays, to tell how repeats agree."""

from __future__ import annotations

import math
import re
import statistics
from array import array
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, overload

from serve_eval.errors import DatasetError, ServeEvalError
from serve_eval.evaluation.results.degradation import Course
from serve_eval.schema import (
    MEAN,
    Cut,
    FailureKind,
    LostAnswer,
    Outcome,
    Sample,
    Score,
    Stability,
    Task,
)

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from serve_eval.stats.repeats import PassAt


T = TypeVar("T", int, float)

TRUNCATED, STOPPED_IN_REASONING, REPETITIVE = 1, 2, 4
LOOPING, UNLISTED_FINISH = 32, 64
CUT_AT_MAX_TOKENS, CUT_BY_WINDOW, CUT_BY_STOP = 128, 256, 512
"""Flags of an answer. REPETITIVE is what we see in its text, LOOPING what the server says of it.
TRUNCATED is what the server says; one of the last three says what cut the answer off."""
CUT_FLAGS: Final = {
    Cut.MAX_TOKENS: CUT_AT_MAX_TOKENS,
    Cut.WINDOW: CUT_BY_WINDOW,
    Cut.STOP_STRING: CUT_BY_STOP,
}
REPAIRED, RESTARTED = 8, 16
"""Flags of a sample: an earlier answer to it may have been lost, or was lost with its server."""
LOST: Final = {LostAnswer.NOTHING: 0, LostAnswer.ANSWER: REPAIRED, LostAnswer.RESTART: RESTARTED}
DOUBTED = REPAIRED | RESTARTED | UNLISTED_FINISH
"""Flags of a sample whose first answer is unknown, or may have been cut."""
OUTCOME_CODES: Final = {outcome: code for code, outcome in enumerate(Outcome, 1)}
FAILURE_CODES: Final = {kind: code for code, kind in enumerate(FailureKind, 1)}
_BLOCK = 4096
"""Number of samples of an order that are searched together for a gap."""
_PICKED = 1 << 16
"""Number of samples whose data is copied together."""


class SampleTable:
    """A row per sample in the order of the protocol, repeated `repeats` times (see `Repeated`).

    Columns are `values`, `outcomes` and `failures` (codes, 0: none), `retryable`, `flags`, the
    times of the first request and of the end of the answer in seconds since 1970, `lengths` in
    tokens or else characters, `parts` by name, and with repeats the hashes of the `answers` that
    were extracted and of the whole `texts` (0: none).
    """

    def __init__(self, task: Task, samples: Sequence[Sample], repeats: int = 1) -> None:
        self.task, self.repeats = task, repeats
        self.samples = samples = samples if repeats == 1 else Repeated(samples, repeats)
        n = len(samples)
        self.values, self.started, self.ended = (array("d", bytes(8 * n)) for _ in range(3))
        self.outcomes, self.failures, self.retryable = (bytearray(n) for _ in range(3))
        self.flags = array("H", bytes(2 * n))
        self.lengths = array("i", bytes(4 * n))
        self.parts: dict[str, array[float]] = {}
        self.answers = array("q", bytes(8 * n)) if repeats > 1 else None
        self.texts = array("q", bytes(8 * n)) if repeats > 1 else None
        self.scored, self.failed = 0, 0
        self._failed_by_code = [0] * (len(FAILURE_CODES) + 1)

    def score(self, i: int) -> float | None:
        """Return the score of sample `i`, or None if it has no result.

        NaN means that it failed in this session.
        """
        return self.values[i] if self.outcomes[i] else math.nan if self.failures[i] else None

    def set_failure(self, i: int, code: int) -> None:
        """Set the failure of sample `i`, 0 for none, and count it."""
        for one, change in ((self.failures[i], -1), (code, 1)):
            if one:
                self.failed += change
                self._failed_by_code[one] += change
        self.failures[i] = code

    def count_failed_kinds(self) -> dict[FailureKind, int]:
        """Return the number of failed samples by kind, of the kinds that occurred."""
        if not self.failed:
            return {}
        counts = self._failed_by_code
        return {kind: counts[code] for kind, code in FAILURE_CODES.items() if counts[code]}

    def is_doubted(self, i: int) -> bool:
        """Return True if sample `i` has a score, but its first answer is unknown."""
        return bool(self.flags[i] & DOUBTED and self.outcomes[i])

    def list_doubted(self) -> list[int]:
        """Return the positions of the scored samples whose first answers are unknown."""
        return [i for i, flag in enumerate(self.flags) if flag & DOUBTED and self.outcomes[i]]

    def without_doubted(self) -> SampleTable:
        """Return a copy in which the samples whose first answers are unknown have no score."""
        table = copy(self)
        table.outcomes = bytearray(self.outcomes)
        for i in self.list_doubted():
            table.outcomes[i] = 0
            table.scored -= 1
        return table

    def list_cut(self) -> list[int]:
        """Return the positions of the scored samples whose answers were cut off."""
        cut = sum(CUT_FLAGS.values())
        return [i for i, flag in enumerate(self.flags) if flag & cut and self.outcomes[i]]

    def with_cuts_right(self) -> SampleTable | None:
        """Return a copy in which the answers that were cut off have the best score.

        None if this says nothing: without a range, for a value that is no mean, and if an answer
        can be partly right, since a cut one then lacks a part only.
        """
        metric = self.task.metric
        if metric.lo is None or metric.hi is None or self.task.aggregation is not MEAN:
            return None
        if any(self.values[i] not in (metric.lo, metric.hi) for i in self.list_scored_places()):
            return None
        best = metric.hi if metric.higher_is_better else metric.lo
        table = copy(self)
        table.values = array("d", self.values)
        for i in self.list_cut():
            table.values[i] = best
        return table

    def scores(self) -> array[float]:
        """Return the score of each sample in the order of the protocol. NaN means no score."""
        return array(
            "d", (v if o else math.nan for v, o in zip(self.values, self.outcomes, strict=True))
        )

    def runs(self) -> list[array[float]]:
        """Return the scores of each repeat in the order of the protocol. NaN means no score."""
        scores = self.scores()
        n = len(scores) // self.repeats
        return [scores[start : start + n] for start in range(0, len(scores), n)]

    def part_runs(self, names: Sequence[str]) -> list[list[array[float]]]:
        """Return these parts of the scores of each repeat, as `runs` does. NaN means no score."""
        n = len(self.samples) // self.repeats
        whole = [
            array("d", (v if o else math.nan for v, o in zip(part, self.outcomes, strict=True)))
            for part in (self.parts.get(name, self.values) for name in names)
        ]
        return [
            [part[start : start + n] for part in whole] for start in range(0, len(self.samples), n)
        ]

    def votes(self) -> Iterator[list[tuple[int | None, float]]]:
        """Yield the hashes and scores of the scored answers to each prompt that has any."""
        assert self.answers is not None
        n = len(self.samples) // self.repeats
        for i in range(n):
            places = [place for place in range(i, len(self.samples), n) if self.outcomes[place]]
            if places:
                yield [(self.answers[place] or None, self.values[place]) for place in places]

    def count_identical(self) -> int:
        """Return the number of prompts that were scored every time, with one text all the times."""
        assert self.texts is not None
        n = len(self.samples) // self.repeats
        drawn = ([self.texts[place] for place in range(i, len(self.samples), n)] for i in range(n))
        return sum(0 not in texts and len(set(texts)) == 1 for texts in drawn)

    def list_unanswered(self) -> Iterator[int]:
        """Yield the positions of the samples without a response, including failed ones."""
        return (i for i, outcome in enumerate(self.outcomes) if not outcome)

    def worth_another_pass(self) -> Iterator[int]:
        """Yield the positions of the failed samples that a later attempt may still answer."""
        return (i for i, failure in enumerate(self.failures) if failure and self.retryable[i])

    def run_values(self) -> list[float]:
        """Return the value in points of each repeat that has a score."""
        n = len(self.samples) // self.repeats
        rounds = [
            [i for i in range(start, start + n) if self.outcomes[i]]
            for start in range(0, len(self.samples), n)
        ]
        return [
            self.task.metric.scale * self.task.aggregation.of(self.pairs(places))
            for places in rounds
            if places
        ]

    def list_scored_places(self) -> Iterator[int]:
        """Yield the positions of the samples that have a score."""
        return (i for i, outcome in enumerate(self.outcomes) if outcome)

    def pairs(self, positions: Iterable[int]) -> Iterator[tuple[Sample, Score]]:
        """Yield samples with their scores. The scores have no answers, since these are not kept."""
        outcomes = {code: outcome for outcome, code in OUTCOME_CODES.items()}
        for i in positions:
            parts = {name: part[i] for name, part in self.parts.items()}
            yield (
                self.samples[i],
                Score(value=self.values[i], outcome=outcomes[self.outcomes[i]], parts=parts),
            )

    def fates(self) -> Iterator[tuple[str, float, bool]]:
        """Yield each sample id with its score (NaN if none), and whether its answer had no text."""
        no_text = {OUTCOME_CODES[Outcome.EMPTY], OUTCOME_CODES[Outcome.REASONING_ONLY]}
        for i, outcome in enumerate(self.outcomes):
            yield self.samples[i].id, self.values[i] if outcome else math.nan, outcome in no_text

    def count_completed(self, order: Sequence[int], since: int = 0) -> int:
        """Return the number of samples of an order before the first unfinished one.

        The first `since` samples are known to be finished, that is, answered or failed.
        """
        import numpy

        outcome, failure = (
            numpy.frombuffer(self.outcomes, numpy.uint8),
            numpy.frombuffer(self.failures, numpy.uint8),
        )
        for start in range(since, len(order), _BLOCK):
            places = numpy.asarray(order[start : start + _BLOCK], dtype=numpy.int64)
            missing = (outcome[places] | failure[places]) == 0
            if missing.any():
                return start + int(missing.argmax())
        return max(since, len(order))

    def course(self, planned: Sequence[int]) -> Course:
        """Return the scored samples of an order, up to the first that is not answered or failed.

        `planned` is the random order of the run, not the order of the times. A sample is asked
        again if it failed, or if the run was interrupted before its answer came. Such samples have
        long answers more often than others, and many in a row would look like a degradation of the
        endpoint.
        """
        import numpy

        done = self.count_completed(planned)
        order = (
            numpy.frombuffer(planned, numpy.int64)[:done]
            if isinstance(planned, array) and planned
            else numpy.asarray(planned[:done], dtype=numpy.int64)
        )
        outcome = numpy.frombuffer(self.outcomes, numpy.uint8)[order]
        places = array("q")
        places.frombytes(order[outcome != 0].view(numpy.uint8).data)
        order, outcome = numpy.frombuffer(places, numpy.int64), outcome[outcome != 0]
        no_text = [OUTCOME_CODES[Outcome.EMPTY], OUTCOME_CODES[Outcome.REASONING_ONLY]]
        flags = numpy.frombuffer(self.flags, numpy.uint16)[order]
        return Course(
            started_s=_pick(self.started, order),
            ended_s=_pick(self.ended, order),
            values=_pick(self.values, order),
            lengths=_pick(self.lengths, order),
            empty=numpy.isin(outcome, no_text).tobytes(),
            repetitive=(flags & REPETITIVE != 0).tobytes(),
            places=places,
        )


def _pick(column: array[T], places: NDArray[numpy.int64]) -> array[T]:
    """Return the entries of a column at these places, without a whole copy in between."""
    import numpy

    whole, picked = numpy.frombuffer(column, column.typecode), column[:0]
    for start in range(0, len(places), _PICKED):
        picked.frombytes(whole[places[start : start + _PICKED]].tobytes())
    return picked


_TAKEN = re.compile(r"#\d+$")


class Repeated(Sequence[Sample]):
    """A sequence of the samples, repeated `times` times as a whole.

    The id of a repeat ends with `#2`, `#3`, ... The first repeat keeps the sample's own id, so that
    a finished run can get more repeats. Raises DatasetError if an id already ends that way.
    """

    def __init__(self, samples: Sequence[Sample], times: int) -> None:
        self._samples, self._times = samples, times
        taken = next((sample.id for sample in samples if _TAKEN.search(sample.id)), None)
        if times > 1 and taken is not None:
            raise DatasetError(
                f"the id {taken!r} looks like that of a repeat", hint="Leave out --repeats."
            )

    def __len__(self) -> int:
        return self._times * len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number, place = divmod(range(len(self))[index], len(self._samples))
        sample = self._samples[place]
        return replace(sample, id=f"{sample.id}#{number + 1}") if number else sample

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))


class RepeatedScores(Protocol):
    """Scores of a task whose prompts were asked several times. `runs` has a row for each repeat."""

    task: Task
    samples: Sequence[Sample]
    repeats: int

    def runs(self) -> Sequence[array[float]]: ...

    def run_values(self) -> Sequence[float]: ...

    def count_identical(self) -> int: ...

    def votes(self) -> Iterable[Sequence[tuple[int | None, float]]]: ...


def stability(scores: RepeatedScores) -> Stability | None:
    """Return how well the repeats agree, or None without repeats.

    Also returns None if no prompt was scored each time. pass@k and the vote need answers that are
    right or wrong, or discrete: see `stats.repeats`. They are over all prompts; a missing answer
    widens the bounds of pass@k and has no vote. A value that is not a mean of the scores has no
    vote, and its spread is that of the values of the repeats.
    """
    if scores.repeats < 2:
        return None
    from serve_eval.stats.repeats import instability, majority, standard_error

    metric, runs = scores.task.metric, scores.runs()
    try:
        told = instability(runs)
    except ServeEvalError:
        return None
    known = [[one for one in column if not math.isnan(one)] for column in zip(*runs, strict=True)]
    plain = scores.task.aggregation is MEAN
    spread = abs(metric.scale) * (told.variance * scores.repeats / len(scores.samples)) ** 0.5
    vote = majority(scores.votes()) if plain else None
    error = standard_error([math.fsum(column) / len(column) for column in known if column])
    passed = _pass_at(scores, known)
    return Stability(
        repeats=scores.repeats,
        prompts=told.prompts,
        sd=spread if plain else statistics.stdev(scores.run_values()),
        flip_rate=told.flip_rate,
        mixed=told.mixed,
        cochran_q=told.cochran_q,
        df=told.df,
        p=told.p,
        pass_at={k: 100.0 * one.value for k, one in passed.items()},
        majority=None if vote is None else metric.scale * vote.value,
        identical=scores.count_identical(),
        seed=scores.task.sampling.seed,
        temperature=scores.task.sampling.temperature,
        se=None if error is None or not plain else abs(metric.scale) * error,
        se_runs=spread / math.sqrt(scores.repeats) if plain else None,
        pass_bounds={k: (100.0 * one.low, 100.0 * one.high) for k, one in passed.items()},
        answered=sum(map(len, known)),
        asked=len(scores.samples),
        voted=None if vote is None else vote.prompts,
        tied=None if vote is None else vote.tied,
    )


def _pass_at(scores: RepeatedScores, known: Sequence[Sequence[float]]) -> dict[str, PassAt]:
    """Return pass@k by k; none for scores without a range."""
    from serve_eval.stats.repeats import pass_at

    metric = scores.task.metric
    if metric.lo is None or metric.hi is None:
        return {}
    best = metric.hi if metric.higher_is_better else metric.lo
    right = [sum(value == best for value in column) for column in known]
    answers = [len(column) for column in known]
    return {
        str(k): pass_at(right, scores.repeats, k, answers) for k in range(1, scores.repeats + 1)
    }
