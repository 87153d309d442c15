"""Run answers after the last one came, each program once, and keep the results.

executions/<task>.jsonl of a run folder has a line for each isolation that was used, and a line per
program. With these results a run is judged, scored again or registered without running anything,
unless it has a new program.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from serve_eval.errors import RunFolderError, SandboxError
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.forkserver import describe_error
from serve_eval.schema import ExecutionResult, Isolation, Program, Response, Sample, Task
from serve_eval.shell_words import quote_path
from serve_eval.storage.journal import Record, answers

if TYPE_CHECKING:
    from serve_eval.sandbox.sandbox import Sandbox
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
            hint="Read docs/code.md about its isolation, then pass --allow-code-execution.",
        )
    from serve_eval.sandbox.probe import strongest

    return await strongest()
