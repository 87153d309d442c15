"""Test when a log ends the wait for a server whose process lives."""

import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet import running as fleet_running
from serve_eval.launchers._fleet.running import Activity, LogWatch, Used, busy, ends, measure_use
from serve_eval.launchers._logs.lines import LogLines
from serve_eval.launchers._logs.signs import Strength
from tests.launchers.dead_servers import FRAMES

OOM = f"{FRAMES}torch.OutOfMemoryError: CUDA out of memory.\n"
UNKNOWN = f"{FRAMES}IndexError: tuple index out of range\n"
ACCESS = 'INFO:     127.0.0.1:4124 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
UNTIL_S = 100


class Log:
    """A log that is checked every quarter of a second of its own clock."""

    def __init__(self, path, idle_from=0.0):
        self.path, self.now = path, 1000.0
        path.touch()
        self.watch = LogWatch(LogLines(path), [])
        since = None if idle_from is None else self.now + idle_from
        self.watch._idle_s = lambda now: None if since is None else max(0.0, now - since)

    def ended_after(self, text, then=None):
        """Return the seconds from the text to the end, or None without an end.

        `then` maps seconds after the text to further text.
        """
        wrote, later = self.now, dict(then or {})
        with self.path.open("a") as file:
            file.write(text)
            file.flush()
            while self.now - wrote < UNTIL_S:
                for at in [at for at in later if self.now - wrote >= at]:
                    file.write(later.pop(at))
                    file.flush()
                if self.watch.look(self.now) is not None:
                    return self.now - wrote
                self.now += 0.25
        return None


@pytest.mark.parametrize(
    ("text", "then", "idle_from", "seconds"),
    [
        pytest.param(OOM, {}, 0.0, 2.0, id="a known cause"),
        pytest.param(OOM, {}, None, 3.0, id="a known cause elsewhere"),
        pytest.param(OOM, {1.0: ACCESS}, 0.0, 2.0, id="a known cause, and our requests"),
        pytest.param(OOM, {}, 1e9, 20.0, id="a known cause, and a rank that spins"),
        pytest.param(
            OOM, {1.0: "[TRT-LLM] [I] smaller batch\n"}, 0.0, 21.0, id="caught, and then nothing"
        ),
        pytest.param(
            OOM, {1.0: "[TRT-LLM] [I] smaller batch\n"}, 1e9, None, id="caught, and it works"
        ),
        pytest.param(
            OOM,
            {1.0 + 15 * i: "[TRT-LLM] [I] smaller batch\n" for i in range(7)},
            0.0,
            None,
            id="caught, and it writes",
        ),
        pytest.param(
            "[TRT-LLM] [E] Failed to initialize executor on rank 1: CUDA out of memory\n",
            {},
            1e9,
            1.5,
            id="end",
        ),
        pytest.param(
            f"{FRAMES}ModuleNotFoundError: No module named 'x'\n",
            {},
            0.0,
            3.0,
            id="a missing package",
        ),
        pytest.param(
            f"{FRAMES}ModuleNotFoundError: No module named 'x'\n",
            {},
            1e9,
            None,
            id="an optional package",
        ),
        pytest.param(
            f"{FRAMES}ModuleNotFoundError: No module named 'x'\n",
            {},
            None,
            20.0,
            id="a package elsewhere",
        ),
        pytest.param(UNKNOWN, {}, 0.0, 20.0, id="a traceback"),
        pytest.param(UNKNOWN, {}, 5.0, 25.0, id="a traceback, and work"),
        pytest.param(UNKNOWN, {}, 1e9, None, id="a traceback that was caught"),
        pytest.param(UNKNOWN, {}, None, 60.0, id="a traceback elsewhere"),
        pytest.param(UNKNOWN, {19.0: "a line\n"}, 0.0, 39.0, id="a traceback, and a line"),
        pytest.param(UNKNOWN, {19.0: ACCESS}, 0.0, 20.0, id="a traceback, and our requests"),
        pytest.param(
            UNKNOWN.rstrip("\n"), {}, 0.0, 21.25, id="a traceback without an end of its line"
        ),
        pytest.param(
            UNKNOWN,
            dict.fromkeys(range(1, 99), "."),
            0.0,
            None,
            id="a traceback, and dots without an end",
        ),
        pytest.param(
            f"{FRAMES}RuntimeError: Executor worker returned error\n",
            {},
            1e9,
            60.0,
            id="given up, and spins",
        ),
        pytest.param("[TRT-LLM] [W] CUDA out of memory\n", {}, 0.0, None, id="a warning"),
        pytest.param("INFO:     Loading\n", {}, 0.0, None, id="nothing"),
        pytest.param("CUDA out of memory\n", {}, 0.0, 20.0, id="a line that may be anything"),
    ],
)
def test_when_a_log_ends_the_wait(
    text,
    then,
    idle_from,
    seconds,
    tmp_path,
):
    assert Log(tmp_path / "log", idle_from).ended_after(text, then) == seconds


def test_a_later_cause_counts_from_its_own_line(tmp_path):
    assert Log(tmp_path / "log").ended_after(UNKNOWN, {10.0: OOM}) == 12.0


def test_an_error_that_comes_again_counts_from_then(tmp_path):
    caught = {
        1.0: "[TRT-LLM] [I] smaller batch\n",
        10.0: OOM,
        11.0: "[TRT-LLM] [I] smaller batch\n",
    }
    assert Log(tmp_path / "log", idle_from=0.0).ended_after(OOM, caught) == 31.0


@pytest.mark.parametrize("strength", Strength)
def test_no_sign_ends_a_wait_at_its_first_moment(strength):
    assert not ends(strength, 0.0, 0.0, 100.0)
    assert not ends(strength, 0.0, 0.0, None)
    assert ends(strength, 1000.0, 1000.0, 1000.0)


# Activity


@contextmanager
def process(code):
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        try:
            yield running.pid
        finally:
            running.kill()


def test_cpu_time_and_bytes_of_a_process_are_counted(tmp_path):
    (file := tmp_path / "weights").write_bytes(b"x" * (1 << 21))
    with process(f"print(1, flush=True)\nwhile True: open({str(file)!r}, 'rb').read()") as pid:
        first, deadline = measure_use(pid), time.monotonic() + 60
        assert first is not None
        while (now := measure_use(pid)) is not None and time.monotonic() < deadline:
            if now.cpu_s > first.cpu_s and now.bytes_read > first.bytes_read + (1 << 21):
                break
            time.sleep(0.05)
        assert now is not None
        assert busy({pid: first}, {pid: now}, 1e-6)
    assert measure_use(pid) is None


def test_idle_processes_are_told_from_busy_ones():
    polls = {1: Used(1.03, 0)}
    assert not busy({1: Used(1.0, 0)}, polls, 1.0)
    assert busy({1: Used(1.0, 0)}, {1: Used(1.2, 0)}, 1.0)
    assert busy({1: Used(1.0, 0)}, {1: Used(1.0, 3 << 20)}, 1.0)
    assert busy({}, {2: Used(0.2, 0)}, 1.0)
    assert not busy({1: Used(1.0, 0)}, {}, 1.0)
    many = {pid: Used(1.03, 0) for pid in range(8)}
    assert not busy({pid: Used(1.0, 0) for pid in range(8)}, many, 1.0)


def test_the_processes_below_one_are_looked_at(monkeypatch):
    used = {7: Used(0.0, 0)}
    monkeypatch.setattr(fleet_running, "descendants", lambda root: list(used) if root == 5 else [])
    monkeypatch.setattr(fleet_running, "measure_use", used.get)
    activity = Activity(5)
    assert activity.idle_s(100.0) == 0.0
    assert activity.idle_s(103.0) == 3.0
    used[7] = Used(1.0, 0)
    assert activity.idle_s(104.0) == 0.0
    assert activity.idle_s(104.9) == 0.0
    assert activity.idle_s(105.5) == 1.5
    used.clear()
    assert activity.idle_s(107.0) is None
    assert Activity(6).idle_s(100.0) is None


def test_several_are_idle_together_or_not_at_all(tmp_path):
    watch = LogWatch(LogLines(tmp_path / "log"), [])
    idle = [3.0, 1.0]
    watch._activities = [
        type("Fake", (), {"idle_s": lambda self, now, one=one: one})() for one in idle
    ]
    assert watch._idle_s(0.0) == 1.0
    watch._activities.append(type("Fake", (), {"idle_s": lambda self, now: None})())
    assert watch._idle_s(0.0) is None


def test_the_times_are_those_of_the_docs():
    times = fleet_running
    assert (times.SETTLE_S, times.CONFIRM_S, times.CAUGHT_S, times.STILL_S, times.UNSEEN_S) == (
        1.5,
        2,
        3,
        20,
        60,
    )


# Together


def server(name, folder, pid, hurried, **where):
    """Return a running server, reduced to what a watch reads."""
    (log := folder / f"{name}.log").touch()
    process = SimpleNamespace(log_file=log, log_start=0, pid=pid, exit_code=lambda: None)
    process.hurry = lambda seconds: hurried.update({name: seconds})
    told = SimpleNamespace(
        **{"name": name, "here": True, "image": None, "engine": "trtllm", **where}
    )
    return SimpleNamespace(
        server=told, process=process, dead=lambda line, cause: LaunchError(f"{name}: {line}")
    )


def test_an_orchestrator_works_as_long_as_those_that_it_waits_for(tmp_path):
    hurried = {}
    pair = [
        server(name, tmp_path, 1, hurried, here=False) for name in ("context_0", "orchestrator")
    ]
    clock = [1000.0]
    look = fleet_running.Watching(pair, lambda: clock[0]).look
    (tmp_path / "orchestrator.log").write_text(UNKNOWN)
    for _ in range(100):
        with (tmp_path / "context_0.log").open("a") as log:
            log.write("INFO:     Loading\n")
        assert look() is None
        clock[0] += 5
    clock[0] += 54
    assert look() is None
    clock[0] += 2
    assert str(look()) == "orchestrator: IndexError: tuple index out of range"
    assert hurried == {"orchestrator": fleet_running.DEAD_S, "context_0": fleet_running.OTHERS_S}


def test_a_server_that_is_well_waits_for_others_however_long(tmp_path):
    clock = [1000.0]
    pair = [server(name, tmp_path, 1, {}, here=False) for name in ("context_0", "generation_0")]
    watching = fleet_running.Watching(pair, lambda: clock[0])

    def writes(text, seconds):
        with (tmp_path / "context_0.log").open("a") as log:
            log.write(text)
        error = watching.look()
        clock[0] += seconds
        return error or watching.look()

    assert writes(UNKNOWN, 1.0) is None
    watching.is_well("context_0")
    assert writes("", 1000.0) is None
    assert writes(OOM, 1000.0) is None
    watching.all_are_well()
    assert writes("", 1000.0) is None
    assert writes(UNKNOWN, 59.0) is None
    assert "context_0: IndexError" in str(writes("", 2.0))


def test_what_was_written_just_before_all_are_well_is_forgotten(tmp_path):
    clock = [1000.0]
    watching = fleet_running.Watching(
        [server("trtllm", tmp_path, 1, {}, here=False)], lambda: clock[0]
    )
    (tmp_path / "trtllm.log").write_text(f"{FRAMES}RuntimeError: Executor worker returned error\n")
    watching.all_are_well()
    with (tmp_path / "trtllm.log").open("a") as log:
        log.write("INFO:     Loading\nCUDA out of memory\n")
    watching.look()
    clock[0] += 30.0
    assert watching.look() is None  # it would be certain, had the watch not forgotten the error
    clock[0] += 40.0
    assert "CUDA out of memory" in str(watching.look())


def test_a_server_that_is_well_and_gives_up_with_a_known_cause_is_dead(tmp_path):
    clock = [1000.0]
    watching = fleet_running.Watching(
        [server("trtllm", tmp_path, 1, {}, here=False)], lambda: clock[0]
    )
    watching.is_well("trtllm")
    (tmp_path / "trtllm.log").write_text(
        "[TRT-LLM] [E] Executor worker returned error: CUDA out of memory\n"
    )
    assert watching.look() is None
    clock[0] += 2.0
    assert "returned error" in str(watching.look())


def test_processes_are_those_of_a_server_and_for_an_orchestrator_of_all(tmp_path):
    context, front = (
        server(name, tmp_path, pid, {}) for pid, name in enumerate(("context_0", "orchestrator"), 7)
    )
    assert fleet_running.roots(context, [context, front]) == [7]
    assert fleet_running.roots(front, [context, front]) == [7, 8]
    for hidden in ({"here": False}, {"image": "an-image"}):
        other = server("context_0", tmp_path, 9, {}, **hidden)
        assert fleet_running.roots(other, [other, front]) == []
        assert fleet_running.roots(front, [other, front]) == []
