"""Notice, by their logs, servers whose engine failed for good while they served.

Such a server may answer with errors for a while, or end in good order. Its requests fail from then
on, and none of them says why.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet.log_watch import DEAD_S, OTHERS_S
from serve_eval.launchers._fleet.running import Running
from serve_eval.launchers._logs import levels
from serve_eval.launchers._logs.causes import find_known
from serve_eval.launchers._logs.growing_log import LogLines

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
                if levels.level(line.text) in ("E", "C", "F") and FATAL.search(line.text):
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
