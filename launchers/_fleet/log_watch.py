"""Notice, by their logs, servers that are dead although their processes live.

Logs are watched while the launch waits for the servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet.running import Running
from serve_eval.launchers._logs.growing_log import LogLines
from serve_eval.launchers._logs.signs import Sign, Signs, Strength
from serve_eval.launchers._process.activity import Activity
from serve_eval.launchers._trtllm.parts import ORCHESTRATOR

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
    return [each.process.pid for each in wanted] if all(_was_seen(each) for each in wanted) else []


def _was_seen(one: Running) -> bool:
    return one.server.here and one.server.image is None
