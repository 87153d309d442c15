"""A server with its process: the errors for its end, and the last line of its log."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from serve_eval.errors import LaunchError
from serve_eval.launchers._logs.causes import Cause, cause
from serve_eval.launchers._machine.memory_kills import Kills, kills
from serve_eval.launchers._process.server_process import LOG_LINES, ServerProcess
from serve_eval.launchers._trtllm.command_line import Server


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
        error = self.error(
            f"{self.server.name} ended with {how} after {time.monotonic() - self.began:.0f} s"
        )
        if how == "signal 9":
            error.hint = f"{self._describe_kill()} {error.hint}"
        return error

    def _describe_kill(self) -> str:
        """Return what is known of a death by SIGKILL.

        Names a lack of main memory only if there is evidence for it.
        """
        now = kills()
        if self.server.here and (told := now.since(self.kills)):
            return told
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
        return self._error(message, "", cause(self.process.log()))

    def dead(self, line: str, known: Cause | None) -> LaunchError:
        """Return the error for a server whose log line shows its death while its process lives."""
        message = (
            f"{self.server.name} is dead, though its process lives, after"
            f" {time.monotonic() - self.began:.0f} s"
        )
        return self._error(message, line, (known.told, known.hint) if known else cause(line))

    def _error(self, message: str, line: str, known: tuple[str, str] | None) -> LaunchError:
        hint, last = (
            f"Its log is {self.process.log_file}.",
            self.process.log().splitlines()[-LOG_LINES:],
        )
        if known:
            message, hint = f"{message}: {known[0]}", f"{known[1]} {hint}"
        first = [line] if line and not any(line in one for one in last) else []
        return LaunchError("\n  ".join([message, *first, *last]), hint=hint)

    def last_line(self) -> str:
        lines = [line.strip() for line in self.process.log(2048).splitlines() if line.strip()]
        return lines[-1][:160] if lines else "nothing yet"


def first_end(running: Iterable[Running]) -> LaunchError | None:
    """Return the error for the first server that ended; None while all run."""
    return next((error for one in running if (error := one.describe_end()) is not None), None)
