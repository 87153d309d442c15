"""Test calls in separate processes, and processes with limits."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from serve_eval.processes import resources
from serve_eval.processes.bounded_call import Apart, Unfinished
from serve_eval.processes.child_process import LimitedEnd, run_limited
from serve_eval.processes.forkserver import alarms_kept
from serve_eval.processes.resources import CoreLoad

HANG = ("^(a+)+$", "a" * 60 + "!")
"""A match that takes `re` years, in C code that ignores signals."""


class _Unreadable:
    def __reduce__(self):
        return int, ("none",)


def made(start):
    """Return a function that does what its first argument says to its process."""
    seen = [start]

    def call(what, *arguments):
        match what:
            case "count":
                seen[0] += 1
                return seen[0], os.getpid()
            case "hang":
                return re.match(*HANG)
            case "sleep":
                time.sleep(60)
            case "raise":
                raise OverflowError(*arguments)
            case "exit":
                sys.exit(3)
            case "leave":
                os._exit(3)
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "memory":
                return bytearray(1 << 60)
            case "deep":
                return call("deep")
            case "unwritable":
                return lambda: None
            case "child" | "child apart":
                command = [sys.executable, "-c", "import time; time.sleep(60)"]
                return subprocess.Popen(command, start_new_session=what == "child apart").pid
            case "unreadable":
                return _Unreadable()
            case "fork":
                child = os.fork() == 0
                if child and not arguments[0]:
                    raise ValueError
                if not child:
                    time.sleep(0.3)
                return "came back"
            case "leave later":
                threading.Timer(0.2, lambda: os._exit(9)).start()
            case "first time in its process":
                time.sleep(1.0)
                return "slept"
            case "alarm":
                signal.signal(signal.SIGALRM, _too_late)
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                time.sleep(60)
            case "forget an alarm":
                if arguments[0]:
                    signal.signal(signal.SIGALRM, _too_late)
                signal.setitimer(signal.ITIMER_REAL, 0.1)
            case "nap":
                time.sleep(0.3)
                return os.getpid()
            case "print":
                print("printed by a call")
        return None

    return call


def _too_late(*_):
    raise TimeoutError("too late")


def talking():
    print("printed while it is made", flush=True)
    os.write(2, b"written while it is made\n")
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    return made(0)


def refusing():
    raise KeyError("no such thing")


@pytest.fixture(scope="module")
def apart():
    makers = {"f": (made, (10,)), "refusing": (refusing, ())}
    with Apart(makers, limit_s=1.0, at_once=1) as found:
        yield found


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _gone(*pids):
    deadline = time.monotonic() + 20
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(_alive, pids))


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("hang", "took longer than 1 s"),
        ("sleep", "took longer than 1 s"),
        ("exit", "SystemExit: 3 ("),
        ("leave", "its process ended with the status 3"),
        ("die", "its process ended by SIGSEGV"),
        ("memory", "MemoryError ("),
        ("deep", "RecursionError: "),
        ("unwritable", "AttributeError: "),
    ],
)
def test_whatever_a_call_does_is_told_and_the_next_one_is_answered(apart, what, told):
    before = apart.call("f", "count")
    found = apart.call("f", what)
    assert isinstance(found, Unfinished)
    assert found.told.startswith(told), found
    count, pid = apart.call("f", "count")
    same = pid == before[1]
    assert same is (what not in ("hang", "sleep", "leave", "die")), (
        "a process is kept unless it had to be ended"
    )
    assert count == (before[0] + 1 if same else 11), (
        "a new process has what was made, but nothing from the previous one"
    )


@pytest.mark.parametrize("handled", [True, False])
def test_an_alarm_is_heard_by_the_call_that_set_it_alone(apart, handled):
    found = apart.call("f", "alarm")
    assert isinstance(found, Unfinished)
    assert found.told.startswith("TimeoutError: too late ("), (
        "the main thread of a process, which third-party code needs"
    )
    pid = apart.call("f", "count")[1]
    assert apart.call("f", "forget an alarm", handled) is None
    assert apart.call("f", "nap") == pid


def test_a_handler_of_alarms_is_taken_back():
    before = signal.getsignal(signal.SIGALRM)
    try:
        with alarms_kept():
            signal.signal(signal.SIGALRM, _too_late)
        assert signal.getsignal(signal.SIGALRM) is before
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_call_prints_goes_to_standard_error_and_what_its_making_prints_nowhere(
    capfd,
):
    with Apart({"f": (talking, ())}, limit_s=5.0, at_once=1) as apart:
        assert apart.call("f", "nap"), "an alarm set while it was made must not end it"
        apart.call("f", "print")
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "printed by a call\n")


def test_an_exception_is_told_with_the_line_that_raised_it(apart):
    found = apart.call("f", "raise", "1e400 \ud800")
    line = next(
        n
        for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "raise OverflowError" in text
    )
    assert found == Unfinished(
        f"OverflowError: 1e400 \\ud800 ({__file__}:{line})", raised="OverflowError"
    )


def test_a_function_that_cannot_be_made_keeps_no_other_from_being_called(apart):
    found = apart.call("refusing")
    assert isinstance(found, Unfinished)
    assert found.told.startswith("KeyError: 'no such thing'")
    assert apart.call("f", "count")[0] > 10


def test_arguments_that_cannot_be_sent_are_told(apart):
    found = apart.call("f", "raise", lambda: None)
    assert isinstance(found, Unfinished)
    assert "pickle" in found.told


@pytest.mark.parametrize("kind", ["child", "child apart"])
def test_what_a_call_started_ends_with_its_process(kind):
    with Apart({"f": (made, (0,))}, limit_s=1.0, at_once=1) as apart:
        hung, left = apart.call("f", kind), 0
        assert _alive(hung)
        apart.call("f", "sleep")
        assert _gone(hung)
        left = apart.call("f", kind)
        apart.call("f", "die")
    assert _gone(left)


def test_a_nursery_that_was_killed_is_started_again():
    with Apart({"f": (made, (0,))}, limit_s=5.0, at_once=1) as apart:
        _, first = apart.call("f", "count")
        os.kill(apart._nursery.pid, signal.SIGKILL)
        assert _gone(first), "its workers end with it"
        assert apart.call("f", "count")[0] == 1


def test_a_call_is_made_again_where_an_earlier_one_left_behind_what_ends_the_process():
    with Apart({"f": (made, (10,))}, limit_s=20.0, at_once=1) as apart:
        before = apart.call("f", "count")
        apart.call("f", "leave later")
        found = apart.call("f", "first time in its process")
        assert (before[0], found) == (11, "slept"), "a new process must not be ended"


def test_a_function_that_comes_back_in_two_processes_answers_once(apart):
    first = apart.call("f", "count")
    assert apart.call("f", "fork", True) == "came back"
    assert apart.call("f", "count") == (first[0] + 1, first[1])
    assert isinstance(apart.call("f", "fork", False), str), "a child that raises"
    assert apart.call("f", "count") == (first[0] + 2, first[1])


def test_a_value_that_cannot_be_read_is_told(apart):
    found = apart.call("f", "unreadable")
    assert isinstance(found, Unfinished)
    assert found.told.startswith("its value cannot be read: ValueError: ")
    assert apart.call("f", "count")[0] > 10


def test_the_end_waits_for_no_call():
    apart = Apart({"f": (made, (0,))}, limit_s=60.0, at_once=1)
    _, worker = apart.call("f", "count")
    nursery = apart._nursery.pid
    under_way, waiting = apart.submit("f", "hang"), apart.submit("f", "hang")
    while not under_way.running():
        time.sleep(0.01)
    apart.close()
    assert isinstance(under_way.result(timeout=10), Unfinished)
    assert waiting.cancelled() or isinstance(waiting.result(timeout=10), Unfinished)
    assert _gone(nursery, worker)
    assert isinstance(apart.call("f", "count"), Unfinished)


_OWNER = """
import sys, threading, time
from serve_eval.processes.bounded_call import Apart
from tests.processes.test_bounded_call import cpu, made, slow
if sys.argv[1] == "making":
    apart = Apart({"f": (slow, ())}, limit_s=60.0, at_once=1)
    threading.Thread(target=apart.call, args=("f", "count"), daemon=True).start()
    while apart._nursery is None or apart._control is None:
        time.sleep(0.01)
    while cpu(apart._nursery.pid) < 2.0:
        time.sleep(0.05)
    print(apart._nursery.pid, flush=True)
else:
    apart = Apart({"f": (made, (0,))}, limit_s=60.0, at_once=1)
    _, worker = apart.call("f", "count")
    threading.Thread(target=apart.call, args=("f", "hang"), daemon=True).start()
    time.sleep(0.3)
    print(apart._nursery.pid, worker, flush=True)
time.sleep(60)
"""


def slow():
    re.match(*HANG)
    raise AssertionError


def cpu(pid):
    """Return the CPU seconds of a process; once in `slow`, it has more than its imports take."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("when", ["calling", "making"])
def test_no_process_outlives_one_that_is_killed(when):
    command = [sys.executable, "-c", _OWNER, when]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        try:
            assert pids
            assert all(map(_alive, pids))
        finally:
            owner.kill()
    assert _gone(*pids)


def test_memory_is_bounded_where_that_is_asked_for():
    with Apart({"f": (made_of, ())}, limit_s=20.0, at_once=1, memory_bytes=1 << 30) as apart:
        assert apart.call("f", 1 << 20) == 1 << 20
        found = apart.call("f", 2 << 30)
        assert isinstance(found, Unfinished)
        assert found.raised == "MemoryError"


def made_of():
    return lambda size: len(bytes(size))


MIB = 2**20


def _run(folder, code, given=b"", *, limit_s=60.0):
    script = folder / "script.py"
    script.write_text(f"import os, signal, sys\n{code}\n")
    return run_limited(script, given, limit_s=limit_s, memory_bytes=256 * MIB)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", ""),
        ("sys.exit(3)", "it ended with the status 3"),
        ("raise ValueError('x')", "it ended with the status 1"),
        ("os.kill(os.getpid(), signal.SIGTRAP)", "it was ended by SIGTRAP"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it was ended by SIGKILL"),
        ("os.kill(os.getpid(), 40)", "it was ended by the signal 40"),
        ("bytearray(2**30)", "it ended with the status 1"),
    ],
)
def test_what_was_written_before_the_end_is_kept(code, why, tmp_path):
    ended = _run(tmp_path, f"os.write(1, b'before')\n{code}", b"x" * MIB)
    assert ended == LimitedEnd(b"before", why)


def test_time_and_processor_time_are_limited(tmp_path):
    slept = _run(tmp_path, "os.write(1, b'a'); import time; time.sleep(600)", limit_s=2.0)
    assert slept == LimitedEnd(b"a", "it took longer than 2 s")
    spun = _run(tmp_path, "signal.setitimer\nwhile True: pass", limit_s=1.0)
    assert spun.why in ("it took longer than 1 s", "it was ended by SIGXCPU")


def test_it_sees_no_code_of_the_current_folder_and_no_secret(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "random", "resource", "runpy"):
        (here / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(here)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = (
        "import json, random, resource\n"
        "core = resource.getrlimit(resource.RLIMIT_CORE)[0]\n"
        "print(json.dumps([os.getcwd(), sys.path, dict(os.environ), core]))"
    )
    ended = _run(tmp_path, code)
    assert ended.why == ""
    folder, places, environ, core = json.loads(ended.written)
    assert (folder, core) == ("/", 0)
    assert str(here) not in places
    assert "" not in places
    assert "OPENAI_API_KEY" not in environ
    assert environ["PATH"] == os.environ["PATH"]


def test_a_script_that_is_not_there_is_a_reason(tmp_path):
    ended = run_limited(tmp_path / "none.py", b"", limit_s=60.0, memory_bytes=256 * MIB)
    assert ended == LimitedEnd(b"", "it ended with the status 1")


CODE = """
import resource
from serve_eval.processes.resources import (ensure_descriptors)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
ensure_descriptors({wanted})
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "said"),
    [
        (256, 4096, 64, "256"),
        (256, 4096, 1000, "1100"),
        (
            256,
            1024,
            1000,
            "1000 requests in flight need 1100 open files, but this process may only have 1024",
        ),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may(soft, hard, wanted, said):
    code = CODE.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    for name in ("STAT", "QUOTA", "USAGE"):
        monkeypatch.setattr(resources, name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ("cpu 180 0 10 110 0 0 0 0 50 0", 0.9),
        ("cpu 100 0 0 200 0 0 0 0 0 0", 0.0),
        ("cpu 100 0 0 150 50 0 0 0 0 0", 0.0),  # waiting for a disk is idle
        ("cpu 100 0 0 100 0 40 40 20 0 0", 1.0),  # interrupts and time taken by others are busy
        ("cpu 100 0 0 100 0 0 0 0 0 0", None),
        ("nothing", None),
    ],
)
def test_cores_are_busy_where_they_are_not_idle(kernel, later, share):
    (kernel / "STAT").write_text("cpu 100 0 0 100 0 0 0 0 0 0\ncpu0 1 1\n")
    load = CoreLoad()
    (kernel / "STAT").write_text(f"{later}\ncpu0 1 1\n")
    assert load.share() == pytest.approx(share)


def test_a_quota_of_a_container_counts_if_more_of_it_is_used(kernel, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(resources.time, "monotonic", lambda: clock[0])
    (kernel / "STAT").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    (kernel / "USAGE").write_text("usage_usec 1000000\nuser_usec 1\n")
    (kernel / "QUOTA").write_text("200000 100000\n")
    load = CoreLoad()
    clock[0] += 10.0
    (kernel / "STAT").write_text("cpu 10 0 0 990 0 0 0 0 0 0\n")
    (kernel / "USAGE").write_text("usage_usec 20000000\nuser_usec 1\n")
    assert load.share() == pytest.approx(0.95)
    (kernel / "QUOTA").write_text("max 100000\n")
    assert load.share() == pytest.approx(0.01)


def test_a_machine_without_these_files_tells_nothing(kernel):
    assert CoreLoad().share() is None
