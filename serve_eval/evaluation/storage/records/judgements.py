"""What judges said of answers: judgements/<task>.jsonl of a run folder, a record for every question
that one was asked.

A record is known by what was asked, so that nothing is judged twice: not when a run goes on, not
when it is scored again or registered, and not when a repeat gave the same answer. Its id is the
hash of that, and behind it, for people, the judge, the metric, the round and the sample.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from serve_eval.client.traffic import TrafficCounter
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.storage.journal import Record, answers, read
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.forkserver import describe_error
from serve_eval.schema import (
    Failure,
    FailureKind,
    Judge,
    Judgement,
    JudgeReport,
    Question,
    Response,
    Sample,
    Task,
)

LEAST_READABLE = 0.5
"""The share of the judgements of each metric that have to be readable: with fewer an answer has no
score."""

_encode = msgspec.json.Encoder(order="sorted").encode


class Judgements:
    """What the judges of one task's answers said, as far as the file tells, which need not be
    there. Raises RunFolderError for a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._said: dict[str, Response | Failure] = {}
        self._traffic: dict[str, TrafficCounter] = {}
        for record in read(path) if path.exists() else ():
            key, _, told = record.id.partition(" ")
            judge, said = told.partition(" ")[0], record.response or record.failure
            if not judge or said is None:
                raise RunFolderError(
                    f"{path}: the record {record.id!r} is no judgement",
                    hint="Delete that line: what it stood for is then asked again.",
                )
            self._traffic.setdefault(judge, TrafficCounter()).see(said)
            if record.response is not None or not isinstance(self._said.get(key), Response):
                self._said[key] = said

    def apply(self, task: Task, sample: Sample, response: Response) -> Response | Failure:
        """The answer with what was said of it, where the task asks judges about it; a failure where
        too little could be read, and where the task's function raises.
        """
        questions = questions_of(task, sample, response)
        if isinstance(questions, Unfinished):
            return Failure(kind=FailureKind.SCORER_ERROR, message=questions.told, retryable=False)
        said = tuple(
            Judgement(judge=q.judge.name, metric=q.metric, round=q.round, value=self._value(q))
            for q in questions
        )
        if short := _short_of(said):
            return Failure(kind=FailureKind.JUDGE_ERROR, message=short, retryable=False)
        return msgspec.structs.replace(response, judgements=said) if said else response

    def list_pending(
        self,
        task: Task,
        samples: Sequence[Sample],
        records: Iterable[Record],
        *,
        again: bool = True,
    ) -> dict[str, Question]:
        """What is to be asked about the answers in `records`, by the ids of its records: all that
        was not, and `again` what could not be read where an answer has no score for that.
        """
        found: dict[str, tuple[str, Question]] = {}
        for sample, response in answers(samples, records):
            questions = _list_known_questions(task, sample, response)
            short = again and isinstance(self.apply(task, sample, response), Failure)
            for q in questions:
                key = _key(q)
                if key not in self._said or (short and self._value(q) is None):
                    found.setdefault(key, (sample.id, q))
        return {
            f"{key} {q.judge.name} {q.metric} {q.round} {sample}": q
            for key, (sample, q) in found.items()
        }

    def figures(
        self, task: Task, samples: Sequence[Sample], records: Iterable[Record]
    ) -> tuple[JudgeReport, ...]:
        """What each judge was asked about the answers in `records`, and what came of it."""
        judges: dict[str, Judge] = {}
        counts: dict[str, Counter[str]] = {}
        for sample, response in answers(samples, records):
            for q in _list_known_questions(task, sample, response):
                judges[q.judge.name] = q.judge
                counts.setdefault(q.judge.name, Counter()).update(self._states(q))
        return tuple(
            JudgeReport(
                name=name,
                model=judge.model,
                base_url=judge.base_url,
                planned=counts[name]["planned"],
                unreadable=counts[name]["unreadable"],
                truncated=counts[name]["truncated"],
                failed=counts[name]["failed"],
                missing=counts[name]["missing"],
                traffic=self._traffic.get(name, TrafficCounter()).traffic(),
            )
            for name, judge in judges.items()
        )

    def _value(self, question: Question) -> float | None:
        said = self._said.get(_key(question))
        return _read(question, said) if isinstance(said, Response) else None

    def _states(self, question: Question) -> Iterator[str]:
        yield "planned"
        match self._said.get(_key(question)):
            case None:
                yield "missing"
            case Failure():
                yield "failed"
            case Response() as said if _read(question, said) is None:
                yield "unreadable"
                if said.truncated:
                    yield "truncated"


def questions_of(task: Task, sample: Sample, response: Response) -> Sequence[Question] | Unfinished:
    """What judges are asked of an answer; nothing for a task that asks none, and of an answer
    without any text or tool call. Unfinished where the task's function raises.
    """
    if task.questions is None or not (response.text.strip() or response.tool_calls):
        return ()
    try:
        return task.questions(sample, response)
    except Exception as error:  # of code of others
        return Unfinished(**describe_error(error))


def _list_known_questions(task: Task, sample: Sample, response: Response) -> Sequence[Question]:
    questions = questions_of(task, sample, response)
    return () if isinstance(questions, Unfinished) else questions


def _read(question: Question, said: Response) -> float | None:
    """Return what a judge said; None where it cannot be read, also since reading it raises."""
    try:
        return question.read(said.text)
    except Exception:  # of code of others
        return None


def judges_of(task: Task, samples: Iterable[Sample]) -> list[tuple[Judge, int]]:
    """Every judge of a task, with how many judgements it is asked for when all samples are
    answered. Raises PlanError for two that have the same name.
    """
    answer = Response(text="?", finish_reason="stop")
    counts: dict[str, tuple[Judge, int]] = {}
    for sample in samples:
        for q in _list_known_questions(task, sample, answer):
            judge, count = counts.get(q.judge.name, (q.judge, 0))
            if judge != q.judge:
                raise PlanError(
                    f"{task.name}: two judges that are not the same are both called {judge.name!r}",
                    hint="Give each a name of its own: `name: ...` beside its model.",
                )
            counts[judge.name] = judge, count + 1
    return list(counts.values())


def _key(question: Question) -> str:
    judge = question.judge
    asked = (judge.name, judge.model, question.prompt, judge.sampling, judge.extra, question.round)
    return hashlib.sha256(_encode(asked)).hexdigest()[:32]


def _short_of(said: Sequence[Judgement]) -> str:
    """Which metric has too few readable judgements, in words; nothing where each has enough."""
    asked = Counter(one.metric for one in said)
    readable = Counter(one.metric for one in said if one.value is not None)
    for metric, count in asked.items():
        if readable[metric] < LEAST_READABLE * count:
            return f"{readable[metric]} of {count} judgements of {metric} could be read"
    return ""
