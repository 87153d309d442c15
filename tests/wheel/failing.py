"""The failure of a step, with what the command printed."""

from __future__ import annotations

import subprocess


class Failed(Exception):
    """A step that did not do what a user needs."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


def expect(
    done: subprocess.CompletedProcess[str], *, code: int, words: tuple[str, ...] = ()
) -> None:
    """Raise Failed for another exit code, or if the output lacks one of the words."""
    printed = done.stdout + done.stderr
    shown = " ".join(map(str, done.args))[-300:]
    if done.returncode != code:
        raise Failed(f"exit code {done.returncode}, not {code}: {shown}", printed)
    for word in words:
        if word not in printed:
            raise Failed(f"the output lacks {word!r}: {shown}", printed)
