"""Handle SIGINT and SIGTERM outside of the event loop: exit with 130.

The handlers work from the start of the process to its end; `_async.py` has those for the event
loop. This file imports almost nothing, since it covers the time in which the other modules are
imported.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

EXIT_CODE = 130
NUMBERS = (signal.SIGINT, signal.SIGTERM)
LINE = "Interrupted"


class Interruption(KeyboardInterrupt):
    """The exception raised for a signal.

    Python remembers a plain KeyboardInterrupt that passes through an `eval`, such as those of
    dataclasses, and then ends the process by the signal, with any exit code replaced.
    """


class Interrupts:
    """The handlers of SIGINT and SIGTERM.

    Before `armed` is set, a signal ends the process immediately. Afterwards, the first signal sets
    `came` and raises Interruption, so that files are closed; the next ones end the process
    immediately.
    """

    def __init__(self) -> None:
        self.armed = self.came = False

    def install(self) -> None:
        """Install the handlers, except for signals that the parent ignores, as nohup does."""
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)
        sys.unraisablehook = self._unraisable
        # Registered first, it runs last. The process then ends within milliseconds, and a signal
        # must not change its exit code.
        atexit.register(_ignore)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.came or not self.armed:
            leave()
        self.came = True
        raise Interruption

    def _unraisable(self, told: sys.UnraisableHookArgs) -> None:
        """End the process for an interruption that is raised in a finalizer.

        Python would print a traceback and drop it.
        """
        if isinstance(told.exc_value, KeyboardInterrupt):
            leave()
        sys.__unraisablehook__(told)


def leave() -> None:
    """Write one line and end the process immediately."""
    try:
        os.write(2, f"{LINE}\n".encode())
    finally:
        os._exit(EXIT_CODE)


def _ignore() -> None:
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
