"""SIGINT and SIGTERM outside of the event loop: from the start of the process to its end they exit
with 130.

`_async.py` has what they do while a loop runs. This file imports next to nothing, since it is there
for the time in which the others are imported.
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
    """A signal came. Python notes a plain KeyboardInterrupt that passes an `eval`, as those of
    dataclasses, and ends the process by the signal in the end, whatever its exit code.
    """


class Interrupts:
    """The effect of SIGINT and SIGTERM. Before `armed` is set, and from the second signal on, they
    end the process at once. The first one after that is raised as Interruption, so that files are
    closed, and sets `came`.
    """

    def __init__(self) -> None:
        self.armed = self.came = False

    def install(self) -> None:
        """Takes the signals, except those that the parent has set to be ignored, as nohup does."""
        for number in NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)
        sys.unraisablehook = self._unraisable
        # Registered first, it runs last: what is left of the process then is over in milliseconds,
        # and its code stands.
        atexit.register(_ignore)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.came or not self.armed:
            leave()
        self.came = True
        raise Interruption

    def _unraisable(self, told: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised in a finalizer and prints a traceback; an interruption must
        not get lost so.
        """
        if isinstance(told.exc_value, KeyboardInterrupt):
            leave()
        sys.__unraisablehook__(told)


def leave() -> None:
    """Ends the process at once, with a line."""
    try:
        os.write(2, f"{LINE}\n".encode())
    finally:
        os._exit(EXIT_CODE)


def _ignore() -> None:
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)
