"""Define a hostile program, and the lines that precede each one."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from serve_eval.sandbox.seccomp import ABSENT, CLONE, IOCTL, PRLIMIT, REFUSED, SOCKET

_COLUMN = 1 if platform.machine() == "aarch64" else 0
CALLS: dict[str, int | None] = {
    name: numbers[_COLUMN] for name, numbers in {**REFUSED, **ABSENT}.items()
} | {
    "clone": CLONE[_COLUMN],
    "ioctl": IOCTL[_COLUMN],
    "prlimit64": PRLIMIT[_COLUMN],
    "socket": SOCKET[_COLUMN],
}
PRELUDE = f"""
import ctypes, errno, os, sys, time
CALLS = {CALLS!r}
libc = ctypes.CDLL(None, use_errno=True)
def out(*what):
    print("OUT:", *what, flush=True)
def stopped(*why):
    print("stopped:", *why, flush=True)
def kernel(name, *args):
    result = libc.syscall(ctypes.c_long(CALLS[name]), *(ctypes.c_long(x) if isinstance(x, int) else x for x in args))
    code = ctypes.get_errno()
    out(name, "gave", result) if result >= 0 else stopped(name + ":", errno.errorcode[code])
    return result
def attempt(action, *args):
    try:
        return action(*args)
    except BaseException as error:
        stopped(type(error).__name__, errno.errorcode.get(getattr(error, "errno", None), ""))
"""  # noqa: E501


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A program with what it tries and what has to stop it.

    It prints `OUT:` with what it got, and `stopped:` with the error that it met. The `SECRET`
    within it is never a text that it may know: printing it means that it got out. `by` is a pattern
    that each of its `stopped:` lines matches, or, if it prints none, the way in which it ended. Its
    `checks` are false, unless it has none: passing means that it forged the result. `finds` are
    places of the host that replace their names in braces.
    """

    name: str
    tries: str
    code: str
    by: str
    checks: str = ""
    wall_s: float = 10.0
    machines: tuple[str, ...] = ("x86_64", "aarch64")
