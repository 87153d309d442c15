"""Describe programs that run in the sandbox, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct


class ExitReason(StrEnum):
    """How a program ended: after its last line; by an exception, or an exit with its status 1;
    before its last line by another exit of its own; by a signal, which some of the limits send, or
    by us when all its processes together took too much; at the time limit.
    """

    PASSED = "passed"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    TIMEOUT = "timeout"


class ExecutionResult(Struct, frozen=True, kw_only=True, gc=False):
    """What became of a program. `exit` is its exit status, 128 + n after signal n, None when it was
    ended by us.
    """

    ended: ExitReason
    exit: int | None
    stdout: str = ""
    stderr: str = ""


class Program(Struct, frozen=True, kw_only=True, gc=False):
    """Python code to be run away from everything: `code` first, then `checks` in a process of their
    own, with the names that it left. It has passed when both came to their end within `wall_s`
    seconds.
    """

    code: str
    checks: str = ""
    stdin: str = ""
    wall_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What kept generated code from this machine, as a probe found it from within.

    `network` and `writable` are what it could reach: whether any, and which folders. `uid` is the
    user that it was to the kernel, `python` the version that ran it, `limits` what one program may
    take (bytes, seconds, counts).
    """

    name: str
    network: bool
    writable: tuple[str, ...]
    uid: int
    python: str
    limits: Mapping[str, int]
