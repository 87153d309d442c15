"""The nursery of serve_eval.processes.bounded_call, and the workers that it forks.

None of them outlives the process that started the nursery, even if that process is killed. The
nursery waits until its socket is closed, and then kills its workers and their children. While it
makes the functions, the kernel sends SIGIO when the socket is closed, which ends the nursery by
default. A worker dies with the nursery. A worker gets no SIGIO: it would also arrive when the other
end reads an answer, and end the next call.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import ctypes

COMMAND = struct.Struct("!cq")
NUMBER = struct.Struct("!q")
FORK, END = b"F", b"E"
"""Commands: fork a worker that reads from the descriptor sent with it, and end the worker with that
process id."""
MESSAGE_CHARACTERS = 400
_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux."""


def main() -> None:
    """Make the functions, then fork workers until the socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which programs that a scorer starts would inherit.
        signal.signal(number, lambda *_: None)
    # Show the output of a scorer immediately: it would be lost with its process.
    sys.stdout = sys.stderr
    makers, memory = pickle.load(sys.stdin.buffer)  # noqa: S301  (from the parent process)
    _no_input()
    functions: dict[str, Callable[..., Any]] = {}
    problems: dict[str, dict[str, object]] = {}
    with _ends_with(control.fileno()), _silent():
        if memory is not None:
            _bound_memory(memory)
        for name, (make, args) in makers.items():
            try:
                with alarms_kept():
                    functions[name] = make(*args)
            except BaseException as error:
                problems[name] = describe_error(error)
    gc.collect()
    gc.freeze()  # The memory of the functions stays shared with the workers.
    said = pickle.dumps(problems)
    control.sendall(NUMBER.pack(len(said)) + said)
    _wait(control, functions)


def _wait(control: socket.socket, functions: Mapping[str, Callable[..., Any]]) -> None:
    workers: set[int] = set()
    libc = _libc()
    if libc is not None:
        # Children of a worker that has ended become children of this process.
        libc.prctl(_ADOPT_ORPHANS, 1)
    try:
        while True:
            select.select([control], [], [])
            command, descriptors, _, _ = socket.recv_fds(control, COMMAND.size, 1)
            if len(command) < COMMAND.size:
                return
            kind, number = COMMAND.unpack(command)
            if kind == FORK:
                control.sendall(
                    NUMBER.pack(_fork(control, descriptors[0], functions, libc, workers))
                )
            else:
                control.sendall(NUMBER.pack(_end(number)))
                workers.discard(number)
    except OSError:
        return  # The other end is closed.
    finally:
        for pid in workers:
            _end(pid)
        for pid in _list_started_by(os.getpid()):
            _kill(pid)


def _end(pid: int) -> int:
    """Kill a worker and its children, and reap it. No other process gets its id before that."""
    for child in _list_started_by(pid):  # Includes those with a separate session.
        _kill(child)
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    _kill(pid)
    return os.waitpid(pid, 0)[1]


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _list_started_by(pid: int) -> list[int]:
    """Return all descendants of a process that Linux lists."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found[1:]


def _fork(
    control: socket.socket,
    descriptor: int,
    functions: Mapping[str, Callable[..., Any]],
    libc: ctypes.CDLL | None,
    workers: set[int],
) -> int:
    nursery = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about threads that packages started.
        pid = os.fork()
    if pid:
        os.close(descriptor)
        workers.add(pid)
        return pid
    try:
        control.close()
        if libc is not None:
            libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() == nursery:
            _work(descriptor, functions)
    finally:
        os._exit(0)


def _work(descriptor: int, functions: Mapping[str, Callable[..., Any]]) -> NoReturn:
    """Call the requested functions until the connection is closed."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):  # If memory runs out, Linux kills this process and not the run.
        Path("/proc/self/oom_score_adj").write_text("1000")
    from multiprocessing.connection import Connection

    connection, worker = Connection(descriptor), os.getpid()
    while True:
        try:
            name, args = pickle.loads(connection.recv_bytes())  # noqa: S301  (from the run)
        except EOFError:
            os._exit(0)
        try:
            with alarms_kept():
                said = pickle.dumps((True, functions[name](*args)), protocol=5)
        except BaseException as error:
            said = pickle.dumps((False, describe_error(error)))
        if os.getpid() != worker:  # The function forked and returned twice; only one answers.
            os._exit(0)
        connection.send_bytes(said)


@contextmanager
def _ends_with(descriptor: int) -> Iterator[None]:
    """Let the kernel end this process, even within C code, if the socket is closed in the block."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([descriptor], [], [], 0)[0]:  # It was closed before.
        os._exit(0)
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _libc() -> ctypes.CDLL | None:
    import ctypes

    return ctypes.CDLL(None) if sys.platform == "linux" else None


@contextmanager
def _silent() -> Iterator[None]:
    """Drop all output of the block: the parent process has run the same code and shown it."""
    kept = {number: os.dup(number) for number in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in kept:
        os.dup2(nowhere, number)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stderr.flush()
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)


@contextmanager
def alarms_kept() -> Iterator[None]:
    """Restore the timer and the handler of SIGALRM after the block.

    Code of users may leave them set, and they would end the next call. Outside the main thread no
    handler can be set, so there is nothing to restore.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        if handler is not None:  # None means that it was not set by Python.
            signal.signal(signal.SIGALRM, handler)


def _no_input() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def _bound_memory(size: int) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):  # Some systems do not have this limit.
        resource.setrlimit(resource.RLIMIT_AS, (size, most))


def describe_error(error: BaseException) -> dict[str, Any]:
    """Describe an exception by its type, message and line."""
    kind = type(error).__name__
    try:
        message = escape(str(error))
    except Exception:
        message = "(its message cannot be read)"
    if len(message) > MESSAGE_CHARACTERS:
        message = f"{message[:MESSAGE_CHARACTERS]}..."
    line = _line_of(error)
    said = f"{kind}: {message}" if message else kind
    if isinstance(error, ServeEvalError):
        return {"told": message, "hint": error.hint, "raised": kind}
    return {
        "told": f"{said} ({line})" if line else said,
        "hint": "",
        "raised": kind,
    }


def escape(text: str) -> str:
    """Return the text with lone surrogates escaped, which UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def _line_of(error: BaseException) -> str:
    """Return FILE:LINE of the deepest call outside packages and Python, else of the deepest one."""
    others = (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    )
    lines = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    lines = [one for one in lines if one[0] != __file__]
    own = [one for one in lines if not one[0].startswith(("<", *others))]
    file, line = (own or lines or [("", 0)])[-1]
    return f"{file}:{line}" if file else ""
