"""Test that no hostile program gets out under either isolation.

Each layer holds if another one is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from serve_eval.errors import SandboxError
from serve_eval.sandbox import seccomp
from serve_eval.sandbox.isolation import ISOLATIONS, namespaces
from serve_eval.sandbox.sandbox import Sandbox
from serve_eval.schema import ExitReason, Isolation, Program
from tests.sandbox.conftest import OTHERS, held, unavailable
from tests.sandbox.hostile.attempt import Attempt
from tests.sandbox.hostile.run import run_all, table
from tests.sandbox.hostile.table import ATTEMPTS

PRESENT = [name for name in ISOLATIONS if unavailable(name) is None]
QUICK = {
    "tcp",
    "abstract",
    "secrets",
    "memory-of-others",
    "session-keys",
    "io_uring",
    "files",
    "frames",
    "equal-object",
}
"""One program of each kind, for the isolation that runs the others in the slow tests."""
OPEN_FILTER = seccomp.build()[-8:]
"""The last line of the filter alone, which allows every call."""


def _stopped(sandbox: Sandbox, isolation: Isolation, attempts: Sequence[Attempt]) -> None:
    results, reached = run_all(sandbox, isolation, attempts)
    assert [one for one in results if one.got_out or not one.as_meant] == [], table(results)
    assert reached == []
    assert len(results) == len(attempts)


def test_no_hostile_program_gets_out(isolated: tuple[Sandbox, Isolation]) -> None:
    assert len(ATTEMPTS) >= 60
    _stopped(*isolated, ATTEMPTS)


@pytest.mark.parametrize("name", OTHERS)
def test_nor_one_of_each_kind_under_the_other_isolation(name: str) -> None:
    _stopped(*held(name), [one for one in ATTEMPTS if one.name in QUICK])


def test_the_evidence_shows_a_program_that_does_get_out(
    isolated: tuple[Sandbox, Isolation],
) -> None:
    kept = Attempt(
        name="kept", tries="its own folder", code="out(open('/tmp/x', 'w').write('x'))", by="never"
    )
    true = Attempt(
        name="true",
        tries="right checks",
        code="def f(x): return x",
        checks="assert f(1) == 1",
        by="never",
    )
    typo = Attempt(
        name="typo", tries="nothing, by mistake", code="socket.socket()", by="EAFNOSUPPORT"
    )
    results, _ = run_all(*isolated, [kept, true, typo])
    assert [one.got_out for one in results] == ["OUT: 1", "passed false checks", None]
    assert [one.as_meant for one in results] == [False, False, False]


def test_the_keyring_is_a_fresh_one_also_where_nothing_filters(
    isolated: tuple[Sandbox, Isolation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "build", lambda: OPEN_FILTER)
    sandbox, isolation = isolated
    unfiltered = Sandbox(sandbox.wrap, sandbox.interpreter, uid=sandbox.uid, at_once=1)
    ring = Attempt(
        name="ring",
        tries="to list the session keyring",
        code=(
            "keys = (ctypes.c_int * 64)()\nsize = libc.syscall(CALLS['keyctl'], 11, -3, keys,"
            " 256)\nout(list(keys)) if size else stopped('an empty keyring')"
        ),
        by="an empty keyring",
    )
    _stopped(unfiltered, isolation, [ring])


def test_names_of_keys_cannot_be_read(isolated: tuple[Sandbox, Isolation]) -> None:
    code = """for place in "/proc/keys", "/proc/key-users":
    try: assert not open(place).read(), place
    except OSError: pass
"""
    assert asyncio.run(isolated[0].run(Program(code=code))).ended is ExitReason.PASSED


@pytest.mark.parametrize(
    ("option", "kind"),
    [("--net", "net"), ("--ipc", "ipc"), ("--uts", "uts"), ("--cgroup", "cgroup")],
)
def test_namespaces_that_lack_one_make_tests_fail_and_not_skip(option: str, kind: str) -> None:
    def lacking(command: Sequence[str], readable: Sequence[str], scratch: int) -> list[str]:
        return [word for word in namespaces(command, readable, scratch) if word != option]

    held("namespaces")
    try:
        with pytest.raises(SandboxError, match=f"it shares {kind} with this machine"):
            held("namespaces", {"namespaces": lacking})
    except pytest.skip.Exception:
        pytest.fail("a sandbox that does not hold is skipped")


def test_a_program_that_could_take_back_that_it_goes_first_makes_tests_fail() -> None:
    def writable_proc(command: Sequence[str], readable: Sequence[str], scratch: int) -> list[str]:
        done = namespaces(command, readable, scratch)
        return [
            word.replace("mount -o remount,bind,ro,nosuid,nodev,noexec /proc\n", "")
            for word in done
        ]

    held("namespaces")
    with pytest.raises(SandboxError, match="the kernel kills others first if memory runs out"):
        held("namespaces", {"namespaces": writable_proc})


def test_where_no_call_is_refused_the_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held(PRESENT[0] if PRESENT else "namespaces")
    monkeypatch.setattr(seccomp, "build", lambda: OPEN_FILTER)
    with pytest.raises(SandboxError, match="its system calls are not filtered"):
        held(PRESENT[0])
