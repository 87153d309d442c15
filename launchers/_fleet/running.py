"""Watch running servers: their processes, and the signs in their logs that they are dead.

Logs are watched while the launch waits for the servers.

Such a server may answer with errors for a while, or end in good order. Its requests fail from then
on, and none of them says why.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import LaunchError
from serve_eval.launchers._logs import lines
from serve_eval.launchers._logs.causes import Cause, find_known
from serve_eval.launchers._logs.last_error import Explanation, explain
from serve_eval.launchers._logs.lines import LogLines
from serve_eval.launchers._logs.signs import Sign, Signs, Strength
from serve_eval.launchers._machine.memory_kills import Kills, kills
from serve_eval.launchers._process.server_process import LOG_LINES, ServerProcess
from serve_eval.launchers._process.supervisor import descendants
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.servers import ORCHESTRATOR

READ_BYTES = 1 << 19
"""Bytes at the end of a log in which the reason for an end is looked for."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server with its process."""

    server: Server
    process: ServerProcess
    began: float
    kills: Kills
    """The counts before the server began."""

    def describe_end(self) -> LaunchError | None:
        """Return the error for its end; None while it runs."""
        if (code := self.process.exit_code()) is None:
            return None
        how = (
            f"signal {code - 128}"
            if code > 128
            else f"signal {-code}"
            if code < 0
            else f"exit code {code}"
        )
        found = self._explain()
        message = f"{self.server.name} ended with {how} after {time.monotonic() - self.began:.0f} s"
        error = self._error(message, found)
        if how == "signal 9" and (told := self._describe_kill(found)):
            error.hint = f"{told} {error.hint}"
        return error

    def _describe_kill(self, found: Explanation | None) -> str:
        """Return what is known of a death by SIGKILL; empty if the log explains it.

        Names a lack of main memory only if there is evidence for it.
        """
        now = kills()
        if self.server.here and (told := now.since(self.kills)):
            return told
        if found is not None and found.cause is not None and found.cause.kills:
            return ""
        if self.server.here and now.is_known():
            return (
                "Something other than the kernel's out-of-memory killer sent SIGKILL: a person, a"
                " job's limit, a watchdog."
            )
        return (
            "Something sent SIGKILL: dmesg on its machine shows whether it was the kernel's"
            " out-of-memory killer."
        )

    def error(self, message: str) -> LaunchError:
        """Return an error with the known cause and the last lines of the log."""
        return self._error(message, self._explain())

    def dead(self, line: str, known: Cause | None) -> LaunchError:
        """Return the error for a server whose log line shows its death while its process lives."""
        message = (
            f"{self.server.name} is dead, though its process lives, after"
            f" {time.monotonic() - self.began:.0f} s"
        )
        known = known or find_known(line, self.server.engine)
        return self._error(message, Explanation(line, known))

    def _explain(self) -> Explanation | None:
        return explain(self.process.log(READ_BYTES), self.server.engine)

    def _error(self, message: str, found: Explanation | None) -> LaunchError:
        """Return the error with the line that shows the reason, unless the last lines have it."""
        line, known = found or Explanation("")
        hint, last = (
            f"Its log is {self.process.log_file}.",
            self.process.log().splitlines()[-LOG_LINES:],
        )
        if known is not None:
            message, hint = f"{message}: {known.told}", f"{known.remedy(self.server.engine)} {hint}"
        first = [line] if line and not any(line in one for one in last) else []
        return LaunchError("\n  ".join([message, *first, *last]), hint=hint)

    def last_line(self) -> str:
        lines = [line.strip() for line in self.process.log(2048).splitlines() if line.strip()]
        return lines[-1][:160] if lines else "nothing yet"


def first_end(running: Iterable[Running]) -> LaunchError | None:
    """Return the error for the first server that ended; None while all run."""
    return next((error for one in running if (error := one.describe_end()) is not None), None)


SETTLE_S = 1.5
"""Seconds to wait for the lines that belong to a certain sign."""
CONFIRM_S = 2.0
"""Seconds that a server must be idle after it raised a known cause."""
CAUGHT_S = 3.0
"""Seconds without log lines and work after a known cause that servers may catch."""
STILL_S = 20.0
"""Seconds without log lines and work after any other error."""
UNSEEN_S = 60.0
"""Seconds without log lines after another error, if CPU time is not known or the server gave up."""
DEAD_S, OTHERS_S = 0.5, 2.0
"""Seconds that a dead server, and those that started with it, may take to end: nobody waits for
their answers."""
PARTIAL_S = 1.0
"""Seconds to wait for the end of an incomplete line."""


class LogWatch:
    """The log of one server.

    The server's processes are those below `roots`; `roots` is empty if it runs elsewhere.
    `wrote_at` is the time when it last wrote. `engine` is the server's, None if it is not known.
    """

    def __init__(self, log: LogLines, roots: Sequence[int], engine: str | None = None) -> None:
        self._log, self._signs = log, Signs(engine)
        self._activities = [Activity(root) for root in roots]
        self._seen: Sign | None = None
        self._seen_at = self.wrote_at = self._grew_at = 0.0

    def look(self, now: float, others_wrote_at: float = 0.0) -> Sign | None:
        """Read new lines; return the sign that the server is dead, once there is one.

        `others_wrote_at` is the time when the servers that it waits for last wrote.
        """
        self._read(now)
        if self._seen is None:
            return None
        silent_s = now - max(self.wrote_at, self._seen_at, others_wrote_at)
        return (
            self._seen
            if ends(self._seen.strength, now - self._seen_at, silent_s, self._idle_s(now))
            else None
        )

    def forget(self, now: float) -> None:
        """Read on and drop every sign except a certain one: the server answers that it is well."""
        self._read(now)
        if self._seen is not None and self._seen.strength is not Strength.CERTAIN:
            self._signs.forget()
            self._seen = None

    def _read(self, now: float) -> None:
        lines = self._log.read()
        if self._log.grew:
            self._grew_at = now
            self.wrote_at = self.wrote_at if lines else now
        elif now - self._grew_at > PARTIAL_S:
            lines = self._log.rest()
        for line in lines:
            later = self._seen is not None and self._seen_at < now
            if self._signs.read(line, later=later):
                self.wrote_at = now
            self._note(self._signs.strongest, now)

    def _note(self, sign: Sign | None, now: float) -> None:
        """Note the strongest sign and the time from which it counts.

        A stronger or different sign counts from now; a weaker one keeps the time of the one before.
        """
        before, self._seen = self._seen, sign
        if sign is not None and (
            before is None or sign.strength > before.strength or sign.line != before.line
        ):
            self._seen_at = now

    def _idle_s(self, now: float) -> float | None:
        each = [activity.idle_s(now) for activity in self._activities]
        known = [one for one in each if one is not None]
        return min(known) if known and len(known) == len(each) else None


def ends(strength: Strength, age_s: float, silent_s: float, idle_s: float | None) -> bool:
    """Return True if a sign of this age means the end of its server.

    `silent_s` is the time since the last line. `idle_s` is the time since the processes last
    worked; None if that is not known.
    """
    if strength is Strength.CERTAIN:
        return age_s >= SETTLE_S
    if strength is Strength.RAISED:
        idle = age_s >= CAUGHT_S if idle_s is None else min(age_s, idle_s) >= CONFIRM_S
        return idle or silent_s >= STILL_S
    if strength is Strength.REPORTED:
        return silent_s >= STILL_S if idle_s is None else min(silent_s, idle_s) >= CAUGHT_S
    if strength is Strength.FINAL and silent_s >= UNSEEN_S:
        return True
    return silent_s >= UNSEEN_S if idle_s is None else min(silent_s, idle_s) >= STILL_S


class Watching:
    """The logs of servers for which a launch waits.

    An orchestrator idles while the others load, so their CPU time and lines count as its own. A
    healthy server also idles while others load, so until the first completion is requested only a
    certain sign ends it.
    """

    def __init__(
        self, running: Sequence[Running], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._running, self._clock, self._well = running, clock, set[str]()
        self._watches = [
            (
                one,
                LogWatch(
                    LogLines(one.process.log_file, one.process.log_start),
                    roots(one, running),
                    one.server.engine,
                ),
            )
            for one in running
        ]

    def look(self) -> LaunchError | None:
        """Return the error of a server that is dead although its process lives; None if none is."""
        for one, watch in self._watches:
            now = self._clock()
            if one.server.name in self._well:
                watch.forget(now)
            waits = one.server.name == ORCHESTRATOR
            others_wrote_at = max(other.wrote_at for _, other in self._watches) if waits else 0.0
            if (
                sign := watch.look(now, others_wrote_at)
            ) is not None and one.process.exit_code() is None:
                for each in self._running:
                    each.process.hurry(DEAD_S if each is one else OTHERS_S)
                return one.dead(sign.line, sign.cause)
        return None

    def is_well(self, name: str) -> None:
        """Note that a server has answered that it is ready."""
        self._well.add(name)

    def all_are_well(self) -> None:
        """Forget earlier errors.

        From now on the servers work on the first completion, and errors count again.
        """
        for _, watch in self._watches:
            watch.forget(self._clock())
        self._well.clear()


def roots(one: Running, running: Sequence[Running]) -> list[int]:
    """Return the processes whose descendants belong to a server.

    None are returned if one of them runs elsewhere.
    """
    wanted = running if one.server.name == ORCHESTRATOR else [one]
    return (
        [each.process.pid for each in wanted]
        if all(each.server.here and each.server.image is None for each in wanted)
        else []
    )


FATAL = re.compile(
    r"CppExecutorError|EngineCore encountered a fatal error"
    r"|CUDA error: (?:an illegal memory access|unspecified launch failure|misaligned address"
    r"|device-side assert|an illegal instruction|uncorrectable ECC error)"
)
"""Errors after which an engine computes nothing more, if they are at level error: those that
trtllm-serve ends itself for, those that vLLM calls fatal, and those of CUDA that stay."""


class FatalWatch:
    """The logs of servers that serve, from where they stood when this was made."""

    def __init__(self, running: Sequence[Running]) -> None:
        self._running = running
        self._logs = [LogLines(one.process.log_file, _size(one)) for one in running]

    def look(self) -> LaunchError | None:
        """Return the error of a server whose engine has failed, with the first line of it."""
        for one, log in zip(self._running, self._logs, strict=True):
            for line in log.read():
                if lines.level(line.text) in ("E", "C", "F") and FATAL.search(line.text):
                    for each in self._running:
                        each.process.hurry(DEAD_S if each is one else OTHERS_S)
                    return _describe(one, line.text)
        return None


def _describe(one: Running, line: str) -> LaunchError:
    """Return the error for a server, with the line and its known cause."""
    known = find_known(line)
    told = f"the engine of {one.server.name} failed after {time.monotonic() - one.began:.0f} s"
    return LaunchError(
        f"{told}{f': {known.told}' if known else ''}\n  {line}",
        hint=f"Its log is {one.process.log_file}.",
    )


def _size(one: Running) -> int:
    try:
        return one.process.log_file.stat().st_size
    except OSError:
        return 0


SAMPLE_S = 1.0
"""Minimum seconds between two samples: CPU time is counted in hundredths of a second."""
IDLE_SHARE = 0.05
"""Share of a CPU below which a process is idle. One that polls every millisecond, as idle MPI pools
do, uses 0.03."""
IDLE_BYTES_PER_S = 1 << 20
"""Bytes per second below which a process is idle. One that loads from a slow disk uses hardly any
CPU time."""


class Used(NamedTuple):
    """Use of CPU and disk by a process since its start, including children that ended."""

    cpu_s: float
    bytes_read: int


class Activity:
    """The processes below `root`, sampled repeatedly. Without /proc nothing is known."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._at: float | None = None
        self._before: Mapping[int, Used] = {}
        self._busy_at = 0.0

    def idle_s(self, now: float) -> float | None:
        """Return the seconds that all processes were idle at the last sample; None without any."""
        if self._at is None or now - self._at >= SAMPLE_S:
            used = {
                pid: one for pid in descendants(self.root) if (one := measure_use(pid)) is not None
            }
            if not used:
                self._at = None
                return None
            if self._at is None or busy(self._before, used, now - self._at):
                self._busy_at = now
            self._at, self._before = now, used
        return self._at - self._busy_at


def busy(before: Mapping[int, Used], after: Mapping[int, Used], seconds: float) -> bool:
    """Return True if a process worked between two samples that are `seconds` apart.

    A new process began with 0.
    """
    none = Used(0.0, 0)
    return any(
        now.cpu_s - before.get(pid, none).cpu_s > IDLE_SHARE * seconds
        or now.bytes_read - before.get(pid, none).bytes_read > IDLE_BYTES_PER_S * seconds
        for pid, now in after.items()
    )


def measure_use(pid: int) -> Used | None:
    """Return what a process used; None if it is gone."""
    folder, read = Path(f"/proc/{pid}"), 0
    with suppress(OSError, ValueError, IndexError):
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        cpu_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            read = max(int(counts["rchar"]), int(counts["read_bytes"]))
        return Used(cpu_s, read)
    return None
