"""A server with its process: the errors for its end, and the last line of its log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from serve_eval.errors import LaunchError
from serve_eval.launchers._logs.causes import Cause, find_known
from serve_eval.launchers._logs.last_error import Explanation, explain
from serve_eval.launchers._machine.memory_kills import Kills, kills
from serve_eval.launchers._process.server_process import LOG_LINES, ServerProcess
from serve_eval.launchers._trtllm.command_line import Server

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
