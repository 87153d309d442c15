"""Keep the verdicts of programs and judges on answers, so that each is asked once.

executions/<task>.jsonl of a run folder has a line for each isolation that was used, and a line per
program. With these results a run is judged, scored again or registered without running anything,
unless it has a new program.

A record is identified by its question, so that nothing is judged twice: not if a run is resumed,
scored again or registered, and not if a repeat gave the same answer. Its id is the hash of the
question, followed, for people, by the judge, the metric, the round and the sample.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from serve_eval.client.traffic import TrafficCounter
from serve_eval.errors import PlanError, RunFolderError, SandboxError
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.forkserver import describe_error
from serve_eval.schema import (
    ExecutionResult,
    Failure,
    FailureKind,
    Isolation,
    Judge,
    Judgement,
    JudgeReport,
    Program,
    Question,
    Response,
    Sample,
    Task,
)
from serve_eval.shell_words import quote_path
from serve_eval.storage.journal import Record, answers, read

if TYPE_CHECKING:
    from serve_eval.sandbox import Sandbox
    from serve_eval.schema import Progress


KEPT_CHARACTERS = 2000
"""Characters kept from the end of a program's stdout, and of its stderr."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    isolation: Isolation | None = None
    program: str | None = None
    ran: ExecutionResult | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Line)


class Executions:
    """The results of the programs of one task's answers.

    With `keep`, new results are appended to the file, which may not exist. Without it, they are
    kept in memory. Raises RunFolderError for a damaged file.
    """

    def __init__(self, path: Path, *, keep: bool) -> None:
        self.path, self._keep = path, keep
        self.isolations: list[Isolation] = []
        self._ran: dict[str, ExecutionResult] = {}
        content = path.read_bytes() if path.exists() else b""
        self._whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: self._whole].splitlines(), 1):
            try:
                self._take(_decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise RunFolderError(
                    f"{path}:{number}: a damaged record: {error}",
                    hint="Delete that line: its program then runs again.",
                ) from error

    def _take(self, line: _Line) -> None:
        if line.isolation is not None and line.isolation not in self.isolations:
            self.isolations.append(line.isolation)
        if line.program is not None and line.ran is not None:
            self._ran[line.program] = line.ran

    def result(self, program: Program) -> ExecutionResult:
        """Return the result of a program. Raises SandboxError if it has not been run."""
        try:
            return self._ran[_key(program)]
        except KeyError:
            raise SandboxError(
                f"{self.path.stem}: an answer has not been run yet",
                hint=f"serve-eval run --resume {quote_path(self.path.parents[1])}"
                " --allow-code-execution",
            ) from None

    def list_pending(
        self, task: Task, samples: Sequence[Sample], records: Iterable[Record]
    ) -> dict[str, Program]:
        """Return the programs of the answers in `records` that have not been run, by key."""
        keyed = ((_key(program), program) for program in _programs(task, samples, records))
        return {key: program for key, program in keyed if key not in self._ran}

    async def run(
        self,
        name: str,
        programs: dict[str, Program],
        sandbox: Sandbox,
        isolation: Isolation,
        progress: Progress | None,
    ) -> None:
        """Run programs, as many at a time as the sandbox allows.

        Results of finished programs are kept if this is cancelled.
        """
        self._add([_Line(isolation=isolation)] if isolation not in self.isolations else [])
        left, done, shown = iter(programs.items()), 0, f"{name}, running the answers"
        if progress is not None:
            progress.begin(shown, len(programs), 0)

        async def worker() -> None:
            nonlocal done
            for key, program in left:
                ran = await sandbox.run(program)
                tails = {
                    "stdout": ran.stdout[-KEPT_CHARACTERS:],
                    "stderr": ran.stderr[-KEPT_CHARACTERS:],
                }
                self._add([_Line(program=key, ran=msgspec.structs.replace(ran, **tails))])
                done += 1
                if progress is not None:
                    progress.update(shown, done, {}, None)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(sandbox.at_once):
                    group.create_task(worker())
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            if progress is not None:
                progress.end(shown)

    def _add(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            self._take(line)
        if not self._keep or not lines:
            return
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, self._whole)  # drop the incomplete line that a kill left
            for line in lines:
                self._whole += os.pwrite(file, _encode(line) + b"\n", self._whole)
        finally:
            os.close(file)


def _key(program: Program) -> str:
    """Return the key of a program, which does not depend on where the data set lies."""
    if program.given:
        given = msgspec.structs.replace(program.given, path="", start=0)
        program = msgspec.structs.replace(program, given=given)
    return hashlib.sha256(_encode(program)).hexdigest()[:32]


def _programs(
    task: Task, samples: Sequence[Sample], records: Iterable[Record]
) -> Iterator[Program]:
    for sample, response in answers(samples, records):
        program = program_of(task, sample, response)
        if isinstance(program, Program):
            yield program


def program_of(task: Task, sample: Sample, response: Response) -> Program | Unfinished | None:
    """Return the program to run for an answer, or None if there is nothing to run.

    Return Unfinished if the task's function raises.
    """
    if task.program is None or not response.text.strip():
        return None
    try:
        return task.program(sample, response)
    except Exception as error:  # third-party code
        return Unfinished(**describe_error(error))


async def permit(names: Sequence[str], *, allowed: bool) -> tuple[Sandbox, Isolation]:
    """Return a sandbox for the answers of these tasks.

    Raises SandboxError if that is not allowed or not possible.
    """
    if not allowed:
        raise SandboxError(
            f"{', '.join(names)}: runs code that the model writes on this machine",
            hint="Read docs/own-questions.md on its isolation, then pass --allow-code-execution.",
        )
    from serve_eval.sandbox.probe import strongest

    return await strongest()


LEAST_READABLE = 0.5
"""Share of the judgements of each metric that must be readable. With fewer, an answer has no
score."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Judgements:
    """The judgements about the answers of one task, from a file that may not exist.

    Raises RunFolderError for a damaged file.
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
                    f"{path}: the record {record.id!r} is not a judgement",
                    hint="Delete that line. Its question is then asked again.",
                )
            self._traffic.setdefault(judge, TrafficCounter()).see(said)
            if record.response is not None or not isinstance(self._said.get(key), Response):
                self._said[key] = said

    def apply(self, task: Task, sample: Sample, response: Response) -> Response | Failure:
        """Return the response with its judgements, if the task asks judges about it.

        Return a failure if too few judgements are readable, or if the task's function raises.
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
        """Return the questions still to ask about the answers in `records`, by record id.

        With `again`, they include unreadable judgements of answers that lack a score for that
        reason.
        """
        found: dict[str, tuple[str, Question]] = {}
        for sample, response in answers(samples, records):
            questions = _list_known_questions(task, sample, response)
            short = again and isinstance(self.apply(task, sample, response), Failure)
            for q in questions:
                key = _hash_question(q)
                if key not in self._said or (short and self._value(q) is None):
                    found.setdefault(key, (sample.id, q))
        return {
            f"{key} {q.judge.name} {q.metric} {q.round} {sample}": q
            for key, (sample, q) in found.items()
        }

    def figures(
        self, task: Task, samples: Sequence[Sample], records: Iterable[Record]
    ) -> tuple[JudgeReport, ...]:
        """Return what each judge was asked about the answers in `records`, counted by outcome."""
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
        said = self._said.get(_hash_question(question))
        return _read(question, said) if isinstance(said, Response) else None

    def _states(self, question: Question) -> Iterator[str]:
        yield "planned"
        match self._said.get(_hash_question(question)):
            case None:
                yield "missing"
            case Failure():
                yield "failed"
            case Response() as said if _read(question, said) is None:
                yield "unreadable"
                if said.truncated:
                    yield "truncated"


def questions_of(task: Task, sample: Sample, response: Response) -> Sequence[Question] | Unfinished:
    """Return the questions to judges about an answer.

    There are none for a task without judges, and for an answer without text or tool call, unless
    it ends a conversation. Return Unfinished if the task's function raises.
    """
    said = response.text.strip() or response.tool_calls or response.exchanges
    if task.questions is None or not said:
        return ()
    try:
        return task.questions(sample, response)
    except Exception as error:  # third-party code
        return Unfinished(**describe_error(error))


def _list_known_questions(task: Task, sample: Sample, response: Response) -> Sequence[Question]:
    questions = questions_of(task, sample, response)
    return () if isinstance(questions, Unfinished) else questions


def _read(question: Question, said: Response) -> float | None:
    """Return the value from 0 to 1 that a judge gave, or None if reading it finds none."""
    try:
        value = question.read(said.text)
        return float(value) if value is not None and 0.0 <= value <= 1.0 else None
    except Exception:  # third-party code
        return None


def judges_of(task: Task, samples: Iterable[Sample]) -> list[tuple[Judge, int]]:
    """Return each judge of a task with its number of judgements if all samples are answered.

    Raises PlanError if two judges have the same name.
    """
    answer = Response(text="?", finish_reason="stop")
    counts: dict[str, tuple[Judge, int]] = {}
    for sample in samples:
        for q in _list_known_questions(task, sample, answer):
            judge, count = counts.get(q.judge.name, (q.judge, 0))
            if judge != q.judge:
                raise PlanError(
                    f"{task.name}: two different judges are both called {judge.name!r}",
                    hint="Give each judge its own name: `name: ...` next to its model.",
                )
            counts[judge.name] = judge, count + 1
    return list(counts.values())


def _hash_question(question: Question) -> str:
    judge = question.judge
    asked = (judge.name, judge.model, question.prompt, judge.sampling, judge.extra, question.round)
    return hashlib.sha256(_encode_sorted(asked)).hexdigest()[:32]


def _short_of(said: Sequence[Judgement]) -> str:
    """Return a message about a metric with too few readable judgements, or "" if there is none."""
    asked = Counter(one.metric for one in said)
    readable = Counter(one.metric for one in said if one.value is not None)
    for metric, count in asked.items():
        if readable[metric] < LEAST_READABLE * count:
            return f"{readable[metric]} of {count} judgements of {metric} could be read"
    return ""
