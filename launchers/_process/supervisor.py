"""Supervise one server, so that nothing of it stays however its launcher ends.

Usage: `supervisor.py GRACE_S N TO_STOP... N AT_END... COMMAND...`, run by its path with the
standard library alone. Its stdin is a pipe that only the launcher holds. When the pipe ends, or on
SIGTERM, the server's process group gets SIGTERM; processes left after GRACE_S seconds get SIGKILL.
A second SIGTERM ends them immediately, as does the end of stdin after a first one, because the
launcher no longer waits.

As a subreaper (Linux), the supervisor inherits every process whose parent ended, MPI ranks among
them, so that none can hide by leaving the process group. A parent-death signal would reach only
direct children.

The N words of TO_STOP are a command to run in place of sending SIGTERM, those of AT_END a command
to run last. They end what is not a process below us, such as a container or a SLURM step. The exit
code is that of the server, or 128 + the number of its signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
STRAY_S = 1.0
"""Seconds that processes of a server may take to end after it."""
KILL_S = 5.0
AT_END_S = 30.0
"""Seconds that the last command may take."""
TICK_S = 0.1


class Supervisor:
    """Holds one server. `asked` counts the requests to end."""

    def __init__(self, grace_s: float, to_stop: list[str], at_end: list[str]) -> None:
        self.grace_s, self.to_stop, self.at_end, self.asked, self.pid = (
            grace_s,
            to_stop,
            at_end,
            0,
            0,
        )
        self.code: int | None = None
        self.held = True

    def ask(self, *_: object) -> None:
        self.asked += 1

    def reap(self) -> None:
        """Reap ended processes, and note the exit code of the server."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.code = code if code >= 0 else 128 - code

    def run(self, command: list[str]) -> int:
        """Start the command, and return its exit code once nothing of it is left."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.ask)
        try:
            server = subprocess.Popen(  # noqa: S603 - the launcher's own command, and no shell
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            print(f"{command[0]} cannot be started: {error}", flush=True)  # noqa: T201 - into the server's log
            return 127
        self.pid = server.pid
        while self.code is None and not self.asked:
            with contextlib.suppress(InterruptedError):
                if self.let_go(TICK_S):
                    self.asked += 1
            self.reap()
        self.end()
        server.returncode = self.code if self.code is not None else -signal.SIGKILL
        return self.code if self.code is not None else 128 + signal.SIGKILL

    def end(self) -> None:
        """End the server and all processes that it started.

        If the server ended without being asked, its remaining processes get no grace.
        """
        if self.code is None:
            self.stop()
            deadline = time.monotonic() + self.grace_s
            while descendants(os.getpid()) and time.monotonic() < deadline and self.asked < 2:
                running = self.code is None
                self.pause()
                self.asked += self.let_go(0.0)
                if running and self.code is not None:
                    deadline = min(deadline, time.monotonic() + STRAY_S)
        deadline = time.monotonic() + KILL_S
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.pause()
        if self.at_end:
            try:
                subprocess.run(self.at_end, stdin=subprocess.DEVNULL, timeout=AT_END_S, check=False)  # noqa: S603
            except (OSError, subprocess.TimeoutExpired) as error:
                print(f"{' '.join(self.at_end)}: {error}", flush=True)  # noqa: T201

    def stop(self) -> None:
        """Ask the server to end."""
        if self.to_stop:
            with contextlib.suppress(OSError):
                subprocess.Popen(self.to_stop, stdin=subprocess.DEVNULL)  # noqa: S603 - below us: reaped, and ended with all
                return
        self.signal_group(signal.SIGTERM)

    def let_go(self, timeout_s: float) -> bool:
        """Return True, once, if the launcher's end of our stdin closed within that time."""
        readable = select.select([sys.stdin] if self.held else [], [], [], timeout_s)[0]
        ended = bool(readable) and not os.read(0, 4096)
        self.held = self.held and not ended
        return ended

    def pause(self) -> None:
        time.sleep(0.02)
        self.reap()

    def signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def descendants(root: int) -> list[int]:
    """Return the processes below `root`, zombies included; none without /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:  # noqa: PTH123
            parent = int(file.read().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _split_counted(words: list[str]) -> tuple[list[str], list[str]]:
    """Return a command preceded by the number of its words, and the words after it."""
    count = 1 + int(words[0])
    return words[1:count], words[count:]


if __name__ == "__main__":
    asking, rest = _split_counted(sys.argv[2:])
    last, served = _split_counted(rest)
    sys.exit(Supervisor(float(sys.argv[1]), asking, last).run(served))
