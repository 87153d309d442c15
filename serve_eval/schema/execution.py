"""Types that describe programs that run in the sandbox, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType


class ExitReason(StrEnum):
    """The way in which a program ended.

    PASSED: after its last line. RAISED: by an exception, or an exit with its status 1. EXITED:
    before its last line by another exit of its own. KILLED: by a signal, which some of the limits
    send, or by us because all its processes together used too much. TIMEOUT: at the time limit.
    """

    PASSED = "passed"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    TIMEOUT = "timeout"


class ExecutionResult(Struct, frozen=True, kw_only=True, gc=False):
    """The result of a program.

    `exit` is its exit status, 128 + n after signal n, None if we ended it.
    """

    ended: ExitReason
    exit: int | None
    stdout: str = ""
    stderr: str = ""


class GivenPiece(Struct, frozen=True, kw_only=True, gc=False):
    """A piece of a file that checks read: `size` bytes from `start`, with their SHA-256.

    A data set with megabytes of tests for each sample stays in its file until a program runs.
    """

    path: str
    start: int
    size: int
    sha256: str


class Program(Struct, frozen=True, kw_only=True, gc=False):
    """Python code to run in isolation.

    `code` runs first, then `checks` in a process of their own, with the names that `code` defined.
    The program passes if both complete within `wall_s` seconds. Checks find the bytes of a `given`
    piece under the name GIVEN, which the program never sees. `memory_bytes` replaces the limit of
    the sandbox on memory.
    """

    code: str
    checks: str = ""
    stdin: str = ""
    wall_s: float = 10.0
    given: GivenPiece | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The isolation of generated code from this machine, as a probe found it from within.

    `network` and `writable` are what the code could reach: any network, and which folders. `uid` is
    its user as the kernel sees it, `python` the version that ran it, `limits` what one program may
    use (bytes, seconds, counts).
    """

    name: str
    network: bool
    writable: tuple[str, ...]
    uid: int
    python: str
    limits: Mapping[str, int]
