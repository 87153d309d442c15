"""Functions called in processes of their own: bounded in time, and whatever a call does ends that
process at most.

A text of a model can hold up `re`, a Jinja template or a user's scorer for hours, in C code that
hears no signal. Only a process can be ended then. The processes live long: one, the nursery, makes
the functions once and then waits; of it workers are forked when a call comes and none is idle. A
worker that takes too long is killed, and the next one stands ready in milliseconds, with what was
made and nothing of what the killed one did. The nursery has one thread, so that its forks are
sound; this process is never forked.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.processes.forkserver import COMMAND, END, FORK, NUMBER

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MAKING_S = 600.0
"""Seconds that making the functions may take."""
ENDING_S = 2.0
"""Seconds that the nursery may take to end before it is killed."""
MOST_AT_ONCE = 4
MOST_STARTS = 5
"""Starts of the nursery, which only a killer from outside can end."""
_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from serve_eval.processes.forkserver import main; main()"
)

Maker = tuple[Callable[..., Callable[..., Any]], tuple[Any, ...]]
"""A function of a module with its arguments: it gives the function that is called. It has to be
pickled."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Why a call gave no value. `raised` is the name of the exception's type, where there was
    one.
    """

    told: str
    hint: str = ""
    raised: str | None = None


@dataclass(frozen=True, slots=True)
class _Worker:
    connection: Connection
    pid: int


class Apart:
    """Calls functions by name in processes of their own, `at_once` at most, each for `limit_s`
    seconds at most.

    Nothing starts before the first call. `memory_bytes` bounds the address space of a worker (None:
    unbounded); `making_s` is how long the makers may take. Calls may come from any thread. `close`
    ends every process.
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
        """A call, to be waited for: its value, or Unfinished."""
        with self._submitting:  # and not the lock that a thread holds while functions are made
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="apart")
            return self._threads.submit(self.call, name, *args)

    def call(self, name: str, *args: Any) -> Any:
        """The value of a call, or Unfinished."""
        try:
            payload = pickle.dumps((name, args), protocol=5)
        except Exception as error:  # of objects of others
            return Unfinished(f"{type(error).__name__}: {error}", raised=type(error).__name__)
        with self._room:
            try:
                return self._call(name, payload)
            except (OSError, EOFError) as error:
                return Unfinished(
                    f"no process for it could be had: {str(error) or type(error).__name__}"
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
            if used and not ended.startswith(
                "took"
            ):  # what an earlier call left behind may have ended it
                return self._call(name, payload, again=True)
            return Unfinished(
                ended
                if status is None or ended.startswith("took")
                else f"{ended} {_in_words(status)}"
            )
        self._idle.append(worker)
        try:
            finished, value = pickle.loads(answered)  # noqa: S301  (of our own process)
        except Exception as error:  # of classes of others, which may not be found here
            return Unfinished(
                f"its value cannot be read: {type(error).__name__}: {error}",
                raised=type(error).__name__,
            )
        return value if finished else Unfinished(**value)

    def _fork(self) -> _Worker:
        """A new worker. Raises OSError or EOFError when there can be none."""
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
        """Starts the nursery and waits until its functions are made. Raises OSError or EOFError."""
        self._forget()
        self._starts += 1
        if self._starts > MOST_STARTS:
            raise OSError("the process that makes the workers ended again and again")
        ours, theirs = socket.socketpair()
        with theirs:
            # In a session of its own, so that a Ctrl-C at the terminal is for us alone.
            self._nursery = subprocess.Popen(  # noqa: S603  (our own interpreter)
                [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._control = ours
        if self._closed:
            raise OSError("the run has ended")
        assert self._nursery.stdin is not None
        with self._nursery.stdin as stdin:
            stdin.write(pickle.dumps([place or str(Path.cwd()) for place in sys.path]))
            stdin.write(pickle.dumps((self._makers, self._memory)))
        ours.settimeout(self._making_s)
        try:
            problems = pickle.loads(_exactly(ours, self._number()))  # noqa: S301  (of our own process)
            self._problems = {name: Unfinished(**told) for name, told in problems.items()}
        except (OSError, EOFError) as error:
            ended = isinstance(error, EOFError)
            why = "ended" if ended else f"took longer than {self._making_s:g} s"
            raise OSError(f"the process that makes what it needs {why}") from error

    def _number(self) -> int:
        assert self._control is not None
        return int(NUMBER.unpack(_exactly(self._control, NUMBER.size))[0])

    def _end(self, worker: _Worker) -> int | None:
        """Ends a worker and all that it started; how it ended, as os.wait tells it. None: not
        known.
        """
        with (
            self._lock,
            worker.connection,
        ):  # closed last: a worker that ends by that leaves what it started behind
            if self._control is None:
                return None
            try:
                self._control.sendall(COMMAND.pack(END, worker.pid))
                return self._number()
            except (OSError, EOFError):
                return None

    def _forget(self) -> None:
        """Ends the nursery, and with it every worker."""
        for worker in self._idle:
            worker.connection.close()
        self._idle.clear()
        if self._control is not None:
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # also for a thread that waits for it
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
        """Ends every process; calls under way come back unfinished."""
        self._closed = True
        if (
            control := self._control
        ) is not None:  # a thread may hold the lock while functions are made
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
    """Describe the end of a process, given its status from os.wait."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"with the status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by the signal {-code}"
