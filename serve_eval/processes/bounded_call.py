"""Call functions in separate processes with a time limit. A call can end at most its own process.

A text of a model can block `re`, a Jinja template or a user's scorer for hours, in C code that
receives no signals. Only killing the process helps then. The processes are long-lived. One, the
nursery, makes the functions once and then waits. It forks a worker when a call arrives and no
worker is idle. A worker that takes too long is killed, and the next one is ready within
milliseconds, with the made functions and without any effect of the killed worker. The nursery has
one thread, so its forks are safe. The calling process is never forked.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serve_eval.processes.child_process import build_environment, list_places
from serve_eval.processes.forkserver import COMMAND, END, FORK, NUMBER

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MAKING_S = 600.0
"""Time limit in seconds for making the functions."""
ENDING_S = 2.0
"""Seconds that the nursery may take to exit before it is killed."""
MOST_AT_ONCE = 4
MOST_STARTS = 5
"""Largest number of starts of the nursery, which only another process can kill."""
_START = (
    "import pickle, sys; from serve_eval.processes.forkserver import main; "
    "sys.path[:] = pickle.load(sys.stdin.buffer); main()"
)

Maker = tuple[Callable[..., Callable[..., Any]], tuple[Any, ...]]
"""A function of a module with its arguments, which returns the function to call. Both must be
picklable."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The reason why a call returned no value. `raised` is the exception's type name, if any."""

    told: str
    hint: str = ""
    raised: str | None = None


@dataclass(frozen=True, slots=True)
class _Worker:
    connection: Connection
    pid: int


class Apart:
    """Calls functions by name in separate processes.

    At most `at_once` calls run concurrently, each for at most `limit_s` seconds. No process starts
    before the first call. `memory_bytes` limits the address space of a worker (None: no limit).
    `making_s` limits the time of the makers. Calls may come from any thread. `close` ends every
    process.
    """

    def __init__(
        self,
        makers: Mapping[str, Maker],
        *,
        limit_s: float,
        at_once: int | None = None,
        making_s: float = MAKING_S,
        memory_bytes: int | None = None,
    ) -> None:
        self._makers, self.limit_s, self._making_s, self._memory = (
            dict(makers),
            limit_s,
            making_s,
            memory_bytes,
        )
        self.names = frozenset(makers)
        self.at_once = at_once or min(MOST_AT_ONCE, os.cpu_count() or 1)
        self._lock, self._submitting = threading.Lock(), threading.Lock()
        self._room = threading.BoundedSemaphore(self.at_once)
        self._idle: list[_Worker] = []
        self._threads: ThreadPoolExecutor | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._problems: Mapping[str, Unfinished] = {}
        self._closed, self._starts, self._broken = False, 0, ""

    def submit(self, name: str, *args: Any) -> Future[Any]:
        """Start a call, and return a future of its value or Unfinished."""
        with self._submitting:  # A thread holds the other lock while functions are made.
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="apart")
            return self._threads.submit(self.call, name, *args)

    def call(self, name: str, *args: Any) -> Any:
        """Return the value of a call, or Unfinished."""
        try:
            payload = pickle.dumps((name, args), protocol=5)
        except Exception as error:  # Objects of users may raise anything.
            return Unfinished(f"{type(error).__name__}: {error}", raised=type(error).__name__)
        with self._room:
            try:
                return self._call(name, payload)
            except (OSError, EOFError) as error:
                return Unfinished(
                    f"no process could be started: {str(error) or type(error).__name__}"
                )

    def _call(self, name: str, payload: bytes, *, again: bool = False) -> Any:
        with self._lock:
            used = bool(self._idle) and not again
            worker = self._idle.pop() if used else self._fork()
            problem = self._problems.get(name)
        if problem is not None:
            self._idle.append(worker)
            return problem
        answered = None
        try:
            worker.connection.send_bytes(payload)
            if worker.connection.poll(self.limit_s):
                answered = worker.connection.recv_bytes()
                ended = ""
            else:
                ended = f"took longer than {self.limit_s:g} s"
        except (OSError, EOFError):
            ended = "its process ended"
        if answered is None:
            status = self._end(worker)
            # An earlier call in this worker may have ended it, so try a new one.
            if used and not ended.startswith("took"):
                return self._call(name, payload, again=True)
            return Unfinished(
                ended
                if status is None or ended.startswith("took")
                else f"{ended} {_in_words(status)}"
            )
        self._idle.append(worker)
        try:
            finished, value = pickle.loads(answered)  # noqa: S301  (from our own process)
        except Exception as error:  # This process may lack the user's classes.
            return Unfinished(
                f"its value cannot be read: {type(error).__name__}: {error}",
                raised=type(error).__name__,
            )
        return value if finished else Unfinished(**value)

    def _fork(self) -> _Worker:
        """Return a new worker. Raises OSError or EOFError if none can be started."""
        if self._closed:
            raise OSError("the run has ended")
        if self._broken:
            raise OSError(self._broken)
        if self._nursery is None or self._nursery.poll() is not None:
            try:
                self._start()
            except Exception as error:
                self._forget()
                self._broken = str(error) or type(error).__name__
                raise OSError(self._broken) from error
        from multiprocessing.connection import Connection

        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [COMMAND.pack(FORK, 0)], [theirs.fileno()])
        try:
            pid = self._number()
        except BaseException:
            ours.close()
            raise
        return _Worker(Connection(ours.detach()), pid)

    def _start(self) -> None:
        """Start the nursery and wait until its functions are made. Raises OSError or EOFError."""
        self._forget()
        self._starts += 1
        if self._starts > MOST_STARTS:
            raise OSError("the process that forks the workers ended repeatedly")
        ours, theirs = socket.socketpair()
        with theirs:
            # A separate session, so that only the calling process receives Ctrl-C.
            self._nursery = subprocess.Popen(  # noqa: S603  (our own interpreter)
                [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                env=build_environment(os.environ),
                start_new_session=True,
            )
        self._control = ours
        if self._closed:
            raise OSError("the run has ended")
        assert self._nursery.stdin is not None
        with self._nursery.stdin as stdin:
            stdin.write(pickle.dumps(list_places()))
            stdin.write(pickle.dumps((self._makers, self._memory)))
        ours.settimeout(self._making_s)
        try:
            problems = pickle.loads(_exactly(ours, self._number()))  # noqa: S301  (our process)
            self._problems = {name: Unfinished(**told) for name, told in problems.items()}
        except (OSError, EOFError) as error:
            ended = isinstance(error, EOFError)
            why = "ended" if ended else f"took longer than {self._making_s:g} s"
            raise OSError(f"the process that makes the functions {why}") from error

    def _number(self) -> int:
        assert self._control is not None
        return int(NUMBER.unpack(_exactly(self._control, NUMBER.size))[0])

    def _end(self, worker: _Worker) -> int | None:
        """End a worker and its children, and return its status from os.wait (None: unknown)."""
        # Close the connection last: a worker that exits because of it leaves its children running.
        with self._lock, worker.connection:
            if self._control is None:
                return None
            try:
                self._control.sendall(COMMAND.pack(END, worker.pid))
                return self._number()
            except (OSError, EOFError):
                return None

    def _forget(self) -> None:
        """End the nursery, and with it every worker."""
        for worker in self._idle:
            worker.connection.close()
        self._idle.clear()
        if self._control is not None:
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # Wakes a thread that waits for it.
            self._control.close()
            self._control = None
        if self._nursery is not None:
            try:
                self._nursery.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                self._nursery.kill()
                self._nursery.wait()
            self._nursery = None

    def close(self) -> None:
        """End every process. Running calls return Unfinished."""
        self._closed = True
        # A thread may hold the lock while functions are made, so do this without the lock.
        if (control := self._control) is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._forget()
        with self._submitting:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _exactly(control: socket.socket, size: int) -> bytes:
    had = bytearray()
    while len(had) < size:
        piece = control.recv(size - len(had))
        if not piece:
            raise EOFError
        had += piece
    return bytes(had)


def _in_words(status: int) -> str:
    """Describe how a process ended, given its status from os.wait."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"with the status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by the signal {-code}"
