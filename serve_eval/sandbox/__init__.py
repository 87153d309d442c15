"""Run generated programs, a limited number at a time, each in its own process tree.

In the sandbox, this code does not import serve_eval.

The process tree is gone when the call returns, even after an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from serve_eval.errors import SandboxError
from serve_eval.sandbox import isolation, seccomp
from serve_eval.sandbox._values import plain
from serve_eval.sandbox.isolation import Wrap, as_user
from serve_eval.schema import ExecutionResult, ExitReason, Program

MODULES = ("_values", "_reading", "_talk", "_program", "_inside")
"""The modules in the order of their imports."""
FLAGS = ("-I", "-S", "-B", "-X", "utf8")
MOST_S = 30.0
START = """import marshal, os, sys
bundle, job, verdict, limits = sys.argv[1:]
modules, keyctl, lines = marshal.loads(os.pread(int(bundle), 1 << 24, 0))
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    module.__builtins__ = dict(vars(__builtins__))
    exec(code, vars(module))
for name, code in modules:
    del sys.modules[name]
module.main(int(job), int(verdict), limits, keyctl, lines)
"""
"""The arguments are descriptors of the bundle, the job and the pipe for the token, followed by the
limits. The modules have their own builtins, so that a program that replaces builtins does not
affect them. Code is named in angle brackets: for any other name, Python would look for the
source in /tmp, where the program could place a link to the job."""
_COMPILE = """import json, marshal, sys
told = json.load(sys.stdin)
modules = [
    (name, compile(text, f"<{name}>", "exec", dont_inherit=True))
    for name, text in told["modules"]
]
sys.stdout.buffer.write(marshal.dumps((modules, told["keyctl"], bytes.fromhex(told["filter"]))))
"""


def build(command: Sequence[str]) -> bytes:
    """Return the bundle for an interpreter, which is the last word of a command line.

    Raises SandboxError if the interpreter cannot compile it, or for a machine without a filter.
    """
    texts = {
        f"serve_eval.sandbox.{name}": (Path(__file__).parent / f"{name}.py").read_text("utf-8")
        for name in MODULES
    }
    told = {
        "modules": [*texts.items()],
        "keyctl": seccomp.keyctl(),
        "filter": seccomp.build().hex(),
    }
    try:
        done = subprocess.run(  # noqa: S603  (an interpreter of this machine, with a text of ours)
            [*command, *FLAGS, "-c", _COMPILE],
            input=json.dumps(told).encode(),
            capture_output=True,
            timeout=MOST_S,
            check=True,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(
            f"{command[-1]} cannot compile the code of the sandbox: {said[:300]}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{command[-1]} cannot be run: {error}") from error
    return done.stdout


LIMITS: Mapping[str, int] = {
    "AS": 512 << 20,
    "FSIZE": 16 << 20,
    "NPROC": 16,
    "NOFILE": 64,
    "CORE": 0,
}
"""Resource limits of a program by their setrlimit names: bytes of memory per process, bytes of a
file, processes, open descriptors, bytes of a core file. The limit of CPU seconds follows from
its time limit."""
SCRATCH_BYTES = 32 << 20
"""Size of its /tmp in bytes."""
OUTPUT_BYTES = 256 << 10
"""Bytes kept of a program's stdout, and of its stderr. It may write as much as to any other
file."""
REAPING_S = 2.0
"""Seconds for the process in front to reap the killed processes behind it."""
Process = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this machine, with the folders that it needs in addition to the system's."""

    path: str
    readable: tuple[str, ...] = ()


class Sandbox:
    """Run programs in one isolation, at most `at_once` at a time, as user `uid` (None: as ours).

    Raises SandboxError for an interpreter that does not run.
    """

    def __init__(
        self, wrap: Wrap, interpreter: Interpreter, *, uid: int | None, at_once: int
    ) -> None:
        self.wrap, self.interpreter, self.uid, self.at_once = wrap, interpreter, uid, at_once
        self._room = asyncio.Semaphore(at_once)
        self._look_s = isolation.LOOK_S * max(1.0, at_once / 4)
        self._bundle = build(as_user([interpreter.path], uid))

    async def run(self, program: Program) -> ExecutionResult:
        """Run a program until it ends. Raises SandboxError if it cannot be started."""
        async with self._room:
            token = secrets.token_hex(16).encode()
            with ExitStack() as stack:
                names = ("inside", "job", "stdin", "stdout", "stderr")
                inside, job, given, out, err = (_memory(stack, name) for name in names)
                verdict, told = os.pipe()
                stack.callback(os.close, verdict)
                try:
                    inside.write(self._bundle)
                    told_job = {
                        "code": program.code,
                        "checks": program.checks,
                        "given": await asyncio.to_thread(_read_given, program),
                        "token": token.decode(),
                    }
                    job.write(plain(told_job))
                    given.write(program.stdin.encode(errors="replace"))
                    memory = program.memory_bytes or LIMITS["AS"]
                    limits = {**LIMITS, "AS": memory, "CPU": int(program.wall_s) + 1}
                    process = self._start((inside, job, given), (out, err), told, limits)
                finally:
                    os.close(told)
                said, excess = await _attend(
                    process,
                    verdict,
                    program.wall_s,
                    len(token),
                    self._look_s,
                    max(memory, isolation.MEMORY_BYTES),
                )
                status = process.returncode
                if excess is not None:
                    ended, status = ExitReason.KILLED, None
                elif said is None:
                    ended, status = ExitReason.TIMEOUT, None
                elif said == token and status == 0:
                    ended = ExitReason.PASSED
                else:
                    ended = _by_itself(status)
                reason = "" if excess is None else f"serve-eval ended this program: {excess}\n"
                return ExecutionResult(
                    ended=ended,
                    exit=status,
                    stdout=_read_kept(out),
                    stderr=_read_kept(err) + reason,
                )

    def _start(
        self,
        given: Sequence[BinaryIO],
        written: Sequence[BinaryIO],
        told: int,
        limits: Mapping[str, int],
    ) -> Process:
        inside, job, stdin = given
        most = ",".join(f"{name}:{value}" for name, value in limits.items())
        handed = (inside.fileno(), job.fileno(), told)
        command = [
            self.interpreter.path,
            *FLAGS,
            "-c",
            START,
            *map(str, handed),
            most,
        ]
        shut_off = as_user(self.wrap(command, self.interpreter.readable, SCRATCH_BYTES), self.uid)
        for file in given:
            file.seek(0)
        stdout, stderr = written
        try:
            # Not with the event loop: uvloop passes on every descriptor that is not close-on-exec.
            return subprocess.Popen(  # noqa: S603  (the command line is ours, and isolates the code)
                shut_off,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                close_fds=True,
                pass_fds=handed,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"{shut_off[0]} cannot be started: {error.strerror}") from error


def _read_given(program: Program) -> bytes:
    """Return the piece of a file that the checks read.

    Raises SandboxError if it cannot be read, or changed.
    """
    given = program.given
    if not given:
        return b""
    try:
        with Path(given.path).open("rb") as file:
            file.seek(given.start)
            content = file.read(given.size)
    except OSError as error:
        raise SandboxError(f"{given.path}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != given.sha256:
        raise SandboxError(
            f"{given.path}: the tests of a program changed since they were loaded",
            hint="Run the command again, with the file as it was.",
        )
    return content


def _memory(stack: ExitStack, name: str) -> BinaryIO:
    """Return a file in memory, so that the program never waits for us to read its output.

    The limit on the size of files applies to it.
    """
    return stack.enter_context(os.fdopen(os.memfd_create(name), "r+b"))


def _read_kept(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(OUTPUT_BYTES).decode(errors="replace")


def _by_itself(status: int | None) -> ExitReason:
    """Return how a program ended that was not ended by us and did not pass."""
    if status is None or status > 128 or status < 0:
        return ExitReason.KILLED
    return ExitReason.RAISED if status == 1 else ExitReason.EXITED


async def _attend(
    process: Process, verdict: int, wall_s: float, length: int, look_s: float, memory: int
) -> tuple[bytes | None, str | None]:
    """Wait for a process, and return its output on the verdict pipe and the limit that it exceeded.

    The output is None if the time limit ended the process. Nothing of the process is left. The pipe
    ends when no process holds its other end. The process in front holds it while it lives, even if
    the program closes it. A process that writes more than the verdict is killed.
    """
    loop, over, said, excess = asyncio.get_running_loop(), asyncio.Event(), bytearray(), None

    def readable() -> None:
        piece = os.read(verdict, length + 1)
        said.extend(piece)
        if not piece or len(said) > length:
            loop.remove_reader(verdict)
            over.set()

    loop.add_reader(verdict, readable)
    try:
        async with asyncio.timeout(wall_s):
            while excess is None and not over.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), look_s)
                excess = (
                    None if over.is_set() else isolation.excess(process.pid, SCRATCH_BYTES, memory)
                )
    except TimeoutError:
        return None, None
    finally:
        loop.remove_reader(verdict)
        _end(process, by_itself=over.is_set() and len(said) <= length)
    return bytes(said), excess


def _end(process: Process, *, by_itself: bool) -> None:
    """Reap a process, which takes microseconds. Kill it first if it has not ended on its own.

    The kill starts at the first process of the namespaces, so that the kernel kills all others in
    them and the process in front reaps it.
    """
    if not by_itself:
        for pid in _children(process.pid) or [process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    try:
        process.wait(REAPING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []
