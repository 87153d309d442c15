"""Start the program and its checker in the sandbox, as the first code of the interpreter.

This process is the first of its namespaces, so no signal from within can end it. It isolates itself
further, starts the program as its child, and is then the checker.

The isolation is a session keyring of its own, the system call filter and the limits. No other
process in the sandbox can read the memory or descriptors of this process. Only it knows the checks
and the token that reports that they passed.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the module around it takes time to import
import ctypes
import os
import resource
import sys

from serve_eval.sandbox._checker import Checker
from serve_eval.sandbox._program import RunningProgram
from serve_eval.sandbox._reading import from_plain

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from typing import Any

JOIN_SESSION_KEYRING = 1
SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 4, 22, 38
NO_KEYRINGS = (1, 38)
"""EPERM and ENOSYS: this process may not use keyctl, or the kernel does not have it. Then neither
can the program."""


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def main(job: int, verdict: int, limits: str, keyctl: int, lines: bytes) -> None:
    """Run a job to its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.syscall(ctypes.c_long(keyctl), JOIN_SESSION_KEYRING, None) < 0
        and ctypes.get_errno() not in NO_KEYRINGS
    ):
        raise OSError(ctypes.get_errno(), "cannot create a session keyring")
    _prctl(libc, SET_NO_NEW_PRIVS, 1)
    _prctl(libc, SET_SECCOMP, 2, ctypes.byref(_Filter(len(lines) // 8, lines)))
    _prctl(libc, SET_DUMPABLE, 0)
    for limit in limits.split(","):
        name, most = limit.split(":")
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(most), int(most)))
    os.environ.clear()
    asked, asks = os.pipe()
    answered, answers = os.pipe()
    program = os.fork()
    if program == 0:
        _only(libc, {asked, answers})
        side = RunningProgram(asked, answers)
        side.serve(side.receive().decode("utf-8", "surrogatepass"))
        return
    os.close(asked)
    os.close(answers)
    _check(program, answered, asks, job, verdict)


def _check(program: int, source: int, sink: int, job: int, verdict: int) -> None:
    def end(status: int) -> None:
        os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

    def reap(*told: Any) -> None:
        """Reap children, and exit with the program's status when the program ends.

        Orphans of the sandbox become children of its first process.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == program:
                end(status)
            if pid == 0:
                return

    def note_closed() -> None:
        """Wait for the program, which has closed its pipe, and exit with its status."""
        end(os.waitpid(program, 0)[1])

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, reap)
    told = from_plain(os.pread(job, os.fstat(job).st_size, 0))
    os.close(job)
    checker = Checker(source, sink, note_closed)
    checker.send(told["code"].encode("utf-8", "surrogatepass"))
    checker.receive()
    if told["checks"]:
        checker.check(told["checks"], told["given"])
    sys.stdout.flush()
    os.write(verdict, told["token"].encode())
    os._exit(0)


def _only(libc: Any, kept: set[int]) -> None:
    """Close all descriptors of the checker that the program must not have."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    last = 2
    for descriptor in sorted(kept):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    _prctl(libc, SET_DUMPABLE, 1)


def _prctl(libc: Any, option: int, value: int, more: Any = 0) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), more, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
