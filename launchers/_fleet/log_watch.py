"""Servers that are dead though their processes live: noticed by their logs while they are waited
for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from launchers._fleet.fleet import Running
from launchers._logs.growing_log import LogLines
from launchers._logs.signs import Sign, Signs, Strength
from launchers._process.activity import Activity
from launchers._trtllm.parts import ORCHESTRATOR
from serve_eval.errors import LaunchError

SETTLE_S = 1.5
"""How long the lines that belong to a certain sign are waited for."""
CONFIRM_S = 2.0
"""How long a server must be idle after it raised a known cause."""
CAUGHT_S = 3.0
"""How long log and processes must stand still after a known cause that servers may catch."""
STILL_S = 20.0
"""How long they must after any other error."""
UNSEEN_S = 60.0
"""How long a log must stand still after one where no CPU time is known, or where the server gave
up."""
DEAD_S, OTHERS_S = 0.5, 2.0
"""How long a dead server may take to end, and those that started with it: nobody waits for an
answer of theirs."""
PARTIAL_S = 1.0
"""How long a line without an end is waited for."""


class LogWatch:
    """The log of one server. `roots` are processes: those below them are the server's; none where
    it runs elsewhere. `wrote_at`: when it last wrote something.
    """

    def __init__(self, log: LogLines, roots: Sequence[int]) -> None:
        self._log, self._signs = log, Signs()
        self._activities = [Activity(root) for root in roots]
        self._seen: Sign | None = None
        self._seen_at = self.wrote_at = self._grew_at = 0.0

    def look(self, now: float, others_wrote_at: float = 0.0) -> Sign | None:
        """Read what was written since the last look; return the sign by which the server is dead,
        once it is one. `others_wrote_at`: when those last wrote that it waits for.
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
        """Read on and drop every sign but the certain one: the server answers that it is well."""
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
        """A sign that got stronger, or another one, counts from now; one that got weaker from when
        it came.
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
    """Return whether a sign of this age is an end. `silent_s`: since the last line; `idle_s`: since
    the processes did something, None where that is not known.
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
    """The logs of servers that are waited for together.

    An orchestrator idles while the others load, so that their CPU time and their lines count as its
    own. A server that is well idles too while others load: until the first completion is asked for,
    only a certain sign ends it.
    """

    def __init__(
        self, running: Sequence[Running], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._running, self._clock, self._well = running, clock, set[str]()
        self._watches = [
            (
                one,
                LogWatch(
                    LogLines(one.process.log_file, one.process.log_start), roots(one, running)
                ),
            )
            for one in running
        ]

    def look(self) -> LaunchError | None:
        """Return the error of a server that is dead though its process lives, once there is one."""
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
        """Take note that a server has answered that it is ready."""
        self._well.add(name)

    def all_are_well(self) -> None:
        """Forget what was before: from now on the servers work on the first completion, and errors
        count again.
        """
        for _, watch in self._watches:
            watch.forget(self._clock())
        self._well.clear()


def roots(one: Running, running: Sequence[Running]) -> list[int]:
    """Return the processes below which those of a server are found; none where one of them runs
    elsewhere.
    """
    wanted = running if one.server.name == ORCHESTRATOR else [one]
    return [each.process.pid for each in wanted] if all(_was_seen(each) for each in wanted) else []


def _was_seen(one: Running) -> bool:
    return one.server.here and one.server.image is None
