"""What the interpreter in the sandbox runs first, as the first process of the namespaces, whom no
signal from within ends. It shuts the door behind itself, starts the program as its child, and is
the checker from then on.

The door: a keyring of its own, the filter of system calls, the limits; and nobody within may look
into the memory or the descriptors of this process, which alone knows the checks and the token that
tells that they came to their end.
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
"""EPERM and ENOSYS: keyctl is refused to us already, or is not in this kernel, and then to the
program too."""


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def main(job: int, verdict: int, limits: str, keyctl: int, lines: bytes) -> None:
    """Run a job to its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.syscall(ctypes.c_long(keyctl), JOIN_SESSION_KEYRING, None) < 0
        and ctypes.get_errno() not in NO_KEYRINGS
    ):
        raise OSError(ctypes.get_errno(), "no keyring of its own")
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
        """Of the first process everybody is a child in the end. With the program it ends as that
        did.
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
        """The program has closed its pipe: it ends, or its time does."""
        end(os.waitpid(program, 0)[1])

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, reap)
    told = from_plain(os.pread(job, os.fstat(job).st_size, 0))
    os.close(job)
    checker = Checker(source, sink, note_closed)
    checker.send(told["code"].encode("utf-8", "surrogatepass"))
    checker.receive()
    if told["checks"]:
        checker.check(told["checks"])
    sys.stdout.flush()
    os.write(verdict, told["token"].encode())
    os._exit(0)


def _only(libc: Any, kept: set[int]) -> None:
    """Leave nothing of the checker's to the program."""
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
