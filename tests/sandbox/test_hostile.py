"""Test that no harmful program gets out of the sandbox or harms its caller.

Each layer holds if another one is removed.

Each limits itself in case the sandbox does not: at most 64 processes, 256 MB and 10 seconds. It
tries to kill only a decoy.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from serve_eval.errors import SandboxError
from serve_eval.sandbox import LIMITS, OUTPUT_BYTES, SCRATCH_BYTES, Sandbox, seccomp
from serve_eval.sandbox.isolation import ISOLATIONS, namespaces
from serve_eval.schema import ExitReason, Program
from tests.sandbox.conftest import OTHERS, held, marked, unavailable
from tests.sandbox.hostile.__main__ import ATTEMPTS
from tests.sandbox.hostile.run import Attempt, run_all, table

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


def _stopped(sandbox, isolation, attempts):
    results, reached = run_all(sandbox, isolation, attempts)
    assert [one for one in results if one.got_out or not one.as_meant] == [], table(results)
    assert reached == []
    assert len(results) == len(attempts)


def test_no_hostile_program_gets_out(isolated):
    assert len(ATTEMPTS) >= 60
    _stopped(*isolated, ATTEMPTS)


@pytest.mark.parametrize("name", OTHERS)
def test_nor_one_of_each_kind_under_the_other_isolation(name):
    _stopped(*held(name), [one for one in ATTEMPTS if one.name in QUICK])


def test_the_evidence_shows_a_program_that_does_get_out(
    isolated,
):
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


def test_the_keyring_is_a_fresh_one_also_where_nothing_filters(isolated, monkeypatch):
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


async def test_names_of_keys_cannot_be_read(isolated):
    code = """for place in "/proc/keys", "/proc/key-users":
    try: assert not open(place).read(), place
    except OSError: pass
"""
    assert (await isolated[0].run(Program(code=code))).ended is ExitReason.PASSED


@pytest.mark.parametrize(
    ("option", "kind"),
    [("--net", "net"), ("--ipc", "ipc"), ("--uts", "uts"), ("--cgroup", "cgroup")],
)
def test_namespaces_that_lack_one_make_tests_fail_and_not_skip(option, kind):
    def lacking(command, readable, scratch):
        return [word for word in namespaces(command, readable, scratch) if word != option]

    held("namespaces")
    try:
        with pytest.raises(SandboxError, match=f"it shares {kind} with this machine"):
            held("namespaces", {"namespaces": lacking})
    except pytest.skip.Exception:
        pytest.fail("a sandbox that does not hold is skipped")


def test_a_program_that_could_take_back_that_it_goes_first_makes_tests_fail():
    def writable_proc(command, readable, scratch):
        done = namespaces(command, readable, scratch)
        return [
            word.replace("mount -o remount,bind,ro,nosuid,nodev,noexec /proc\n", "")
            for word in done
        ]

    held("namespaces")
    with pytest.raises(SandboxError, match="the kernel kills others first if memory runs out"):
        held("namespaces", {"namespaces": writable_proc})


def test_where_no_call_is_refused_the_sandbox_is_refused(monkeypatch):
    held(PRESENT[0] if PRESENT else "namespaces")
    monkeypatch.setattr(seccomp, "build", lambda: OPEN_FILTER)
    with pytest.raises(SandboxError, match="its system calls are not filtered"):
        held(PRESENT[0])


_TRY = """
import os, sys, time
def attempt(action):
    try:
        return action() or "done"
    except Exception as error:
        return type(error).__name__
"""


def test_nothing_outside_can_be_written(run, tmp_path):
    tmp_path.chmod(0o777)
    mine = tmp_path / "mine"
    mine.write_text("as it was")
    mine.chmod(0o666)
    folders = [
        "/",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/etc",
        "/dev",
        "/proc",
        "/root",
        "/home",
        "/var/tmp",
        str(tmp_path),
    ]
    ran = run(f"""{_TRY}
for folder in {folders}:
    assert attempt(lambda: open(folder + "/written", "w").write("x")) != "done", folder
assert attempt(lambda: open({str(mine)!r}, "w")) == "FileNotFoundError"
assert attempt(lambda: open("/proc/sys/kernel/hostname", "w").write("x")) != "done"
assert attempt(lambda: os.chmod("/usr", 0o777)) != "done"
assert attempt(lambda: os.symlink("x", "/usr/x")) != "done"
open("/tmp/kept", "w").write("x")
""")
    assert ran.ended is ExitReason.PASSED, ran.stderr
    assert mine.read_text() == "as it was"
    assert run("import os; assert os.listdir('/tmp') == []").ended is ExitReason.PASSED, (
        "the next program finds nothing"
    )


@pytest.mark.slow
def test_forks_of_forks_are_over_with_the_program(run):
    ran = run(
        """import os
for _ in range(6):  # 64 at most
    try: os.fork()
    except BlockingIOError: pass
while True: pass
""",
        wall_s=1.5,
    )
    assert ran.ended is ExitReason.TIMEOUT


def test_memory_is_bounded(run):
    # Zeroed pages are not touched, so no memory is taken if the limit does not hold.
    ran = run(f"bytearray({LIMITS['AS'] + (16 << 20)})")
    assert (ran.ended, "MemoryError" in ran.stderr) == (ExitReason.RAISED, True)
    assert run("assert len(bytearray(64 << 20)) == 64 << 20").ended is ExitReason.PASSED


def test_files_and_output_are_bounded(run):
    ran = run(f"""{_TRY}
piece, written = bytes(1 << 20), 0
def fill():
    global written
    for n in range(8):
        with open(f"/tmp/{{n}}", "wb", buffering=0) as file:
            for _ in range(8):
                written += file.write(piece)
print(attempt(fill), written)
print(attempt(lambda: open("/tmp/0", "wb").truncate({LIMITS["FSIZE"] + 1})))
print(attempt(lambda: [os.dup(0) for _ in range({LIMITS["NOFILE"]})]))
""")
    filled, single, descriptors = ran.stdout.splitlines()
    assert filled.startswith("OSError")
    assert int(filled.split()[1]) <= SCRATCH_BYTES
    assert (single, descriptors) == ("OSError", "OSError")
    for stream in (1, 2):
        flood = run(f"import os\nfor _ in range(4096): os.write({stream}, bytes(65536))")
        assert flood.ended in (ExitReason.RAISED, ExitReason.EXITED)
        assert OUTPUT_BYTES <= len(flood.stdout) + len(flood.stderr) <= OUTPUT_BYTES + 1000


def test_no_descriptor_of_ours_is_inherited(run, isolated):
    code = """import os, stat
for process in filter(str.isdigit, os.listdir("/proc")):
    try: open_there = os.listdir(f"/proc/{process}/fd")
    except OSError: continue
    for fd in open_there:
        try: print(os.readlink(f"/proc/{process}/fd/{fd}"))
        except OSError: pass
"""

    async def with_an_open_folder():
        with tempfile.TemporaryDirectory() as folder:
            mine = os.open(folder, os.O_RDONLY)
            os.set_inheritable(mine, True)
            try:
                return await isolated[0].run(Program(code=code))
            finally:
                os.close(mine)

    import uvloop

    for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop) as runner:
            ran = runner.run(with_an_open_folder())
        assert ran.ended is ExitReason.PASSED, ran.stderr
        kinds = {
            target.partition(":")[0].partition(" ")[0] for target in ran.stdout.split("\n")[:-1]
        }
        assert {kind for kind in kinds if not kind.startswith(("pipe", "/memfd", "/proc"))} <= {
            "/dev/null"
        }, ran.stdout


def test_limits_cannot_be_raised(run):
    ran = run("import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (4096, 4096))")
    assert (ran.ended, "ValueError" in ran.stderr or "PermissionError" in ran.stderr) == (
        ExitReason.RAISED,
        True,
    )


def _zombies():
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    found.add(place.stat().st_uid)
            except OSError:
                continue
    return found


async def test_a_cancelled_program_is_over_at_once_and_leaves_no_zombie(isolated, mark):
    sandbox, isolation = isolated
    code = (
        f"import os\nif os.fork() == 0: os.execv('/bin/sleep', ['{mark}', '10'])\nimport time;"
        " time.sleep(10)"
    )
    task = asyncio.create_task(sandbox.run(Program(code=code)))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if marked(mark):
            break
    else:
        pytest.fail("the program did not start")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked(mark) == []
    if isolation.uid != os.getuid():
        _wait(
            lambda: isolation.uid not in _zombies()
        )  # programs of other tests are zombies for a short time


@pytest.mark.slow
def test_a_killed_harness_takes_its_programs_along(isolated, mark):
    harness = f"""
import asyncio
from serve_eval.sandbox.isolation import ISOLATIONS
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import Program
async def main():
    sandbox, _ = await strongest(isolations={{{isolated[1].name!r}: ISOLATIONS[{isolated[1].name!r}]}})
    await sandbox.run(Program(code="import os; os.execv('/bin/sleep', ['{mark}', '10'])"))
asyncio.run(main())
"""  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", harness]) as process:
        try:
            _wait(lambda: bool(marked(mark)))
        finally:
            process.send_signal(signal.SIGKILL)
    _wait(lambda: not marked(mark))


def _wait(condition):
    tick = threading.Event()
    for _ in range(1000):
        if condition():
            return
        tick.wait(0.01)
    pytest.fail("it did not happen in ten seconds")
