"""Test a server process from start to end, with commands that end in every way."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serve_eval.errors import EndpointError, LaunchError, PlanError
from serve_eval.launchers._process import server_process as process_module
from serve_eval.launchers._process.server_process import (
    KILL_S,
    LOG_LINES,
    STOP_S,
    ServerProcess,
    server_process,
    supervise,
    while_alive,
)
from tests.clock import until
from tests.launchers.conftest import gone

PYTHON = [sys.executable, "-c"]
SLEEPS = [*PYTHON, "import time; time.sleep(60)"]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="servers are launched on Linux only"
)


async def never():
    """Never report a ready server."""


async def until_ended(server):
    """Wait for the end of the process, or raise TimeoutError after 20 s."""
    async with asyncio.timeout(20):
        while server.exit_code() is None:  # noqa: ASYNC110 - a process sends no event when it ends
            await asyncio.sleep(0.01)


@pytest.fixture
def launcher_end():
    """Put a pipe in the place of standard input, and yield its other end."""
    (ours, theirs), kept = os.pipe(), os.dup(0)
    os.dup2(ours, 0)
    yield theirs
    os.dup2(kept, 0)
    for one in (ours, kept):
        os.close(one)


async def test_a_server_of_ours_tells_its_address_and_ends_with_its_launcher(
    launcher_end, tmp_path, monkeypatch, capsys
):
    read, events = os.read, []

    def note_read(number, most):
        events.append(read(number, most))
        return events[-1]

    @asynccontextmanager
    async def serving():
        yield "http://h:1/v1"
        await asyncio.sleep(0.05)
        events.append("closed")

    monkeypatch.setattr(process_module.os, "read", note_read)
    ready = tmp_path / "ready"
    server = asyncio.create_task(process_module.serve_until_ended(serving(), "x", ready))
    await until(ready.exists)
    assert (ready.read_text(), capsys.readouterr().out) == ("http://h:1/v1", "x at http://h:1/v1\n")
    os.write(launcher_end, b"more")
    await until(lambda: events)
    os.close(launcher_end)
    await asyncio.wait_for(server, 20)
    assert events == [b"more", b"", "closed"]


def test_a_server_of_ours_without_its_extra_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(process_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match="the launcher simulated needs the package aiohttp") as why:
        process_module.check_installed("simulated")
    assert why.value.hint.startswith("Install the optional extra servers:")


def ended(script, log, timeout_s=20.0):
    """Return the error of a server that is waited on until it ends."""

    async def run():
        async with server_process([*PYTHON, script], log_file=log) as server:
            await server.until(never, timeout_s=timeout_s)

    with pytest.raises(LaunchError) as caught:
        asyncio.run(run())
    return caught.value


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise SystemExit(0)", "the server ended with exit code 0 before it was ready"),
        ("raise SystemExit(7)", "the server ended with exit code 7 before it was ready"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            "the server ended with signal 15 before",
        ),
    ],
)
def test_the_end_of_a_server_is_told_with_its_log(tmp_path, script, told):
    script = f"print('\\n'.join(str(i) for i in range(40)), flush=True)\n{script}"
    error = ended(script, tmp_path / "logs/one.log")
    lines = str(error).split("\n  ")
    assert lines[0].startswith(told)
    assert lines[1:] == [str(i) for i in range(40 - LOG_LINES, 40)]
    assert error.hint == f"Its log is {tmp_path / 'logs/one.log'}."
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs/one.log").stat().st_mode & 0o777 == 0o600


def test_a_server_that_is_never_ready_is_given_up(tmp_path):
    error = ended("import time; time.sleep(60)", tmp_path / "log", timeout_s=0.1)
    assert str(error) == "the server is not ready after 0.1 s"


class Clock:
    """An event loop's clock that each sleep moves on; it records the pauses."""

    def __init__(self, monkeypatch):
        self.now, self.pauses = 100.0, []
        monkeypatch.setattr(process_module.asyncio, "sleep", self._sleep)
        monkeypatch.setattr(process_module.asyncio, "get_running_loop", lambda: self)

    def time(self):
        return self.now

    async def _sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


class Process:
    """A process that ends by the signals it heeds, or on its own after `polls` polls."""

    def __init__(self, heeds=(), polls=None):
        self.pid, self.returncode, self.stdin = 4242, None, None
        self.heeds, self.polls, self.sent = heeds, polls, []

    def poll(self):
        if self.polls is not None:
            self.polls -= 1
            if self.polls <= 0:
                self.returncode = 0
        for number in self.sent:
            if number in self.heeds:
                self.returncode = -number
        return self.returncode

    def killpg(self, pid, number):
        assert pid == self.pid
        self.sent.append(int(number))


def server(monkeypatch, process, supervised_s=None):
    monkeypatch.setattr(process_module.os, "killpg", process.killpg)
    return ServerProcess(process, Path("/nowhere"), 0, supervised_s)


@pytest.mark.parametrize("supervised_s", [None, 3.0])
@pytest.mark.parametrize("heeds", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_is_asked_to_end_and_then_killed(monkeypatch, heeds, supervised_s):
    """A server with a supervisor gets the time that its supervisor needs.

    The supervisor is asked twice before it is killed.
    """
    clock, process = Clock(monkeypatch), Process((heeds,))
    await server(monkeypatch, process, supervised_s).stop()
    ended_by, last = process.sent[:-1], process.sent[-1]
    assert last == signal.SIGKILL, "what is left of its group"
    patience = STOP_S if supervised_s is None else supervised_s + 2 * KILL_S
    if heeds is signal.SIGTERM:
        assert ended_by == [signal.SIGTERM]
        assert clock.now - 100.0 <= 0.02
    elif supervised_s is None:
        assert ended_by == [signal.SIGTERM, signal.SIGKILL]
        assert clock.now - 100.0 == pytest.approx(patience, abs=0.05)
    else:
        assert ended_by == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
        assert clock.now - 100.0 == pytest.approx(patience + 2 * KILL_S, abs=0.05)


async def test_one_that_nothing_ends_is_left_after_a_while(monkeypatch):
    clock, process = Clock(monkeypatch), Process()
    await server(monkeypatch, process).stop()
    assert process.sent == [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL]
    assert clock.now - 100.0 == pytest.approx(STOP_S + 4 * KILL_S, abs=0.1)
    assert set(clock.pauses) == {0.02}


async def test_one_that_has_ended_is_signalled_once_for_its_group_and_never_again(
    monkeypatch,
):
    Clock(monkeypatch)
    process = Process(polls=1)
    one = server(monkeypatch, process)
    assert one.exit_code() == 0
    await one.stop()
    assert (one.exit_code(), process.sent) == (0, [signal.SIGKILL])


def test_the_probe_is_made_often_at_first_and_then_after_each_longest_pause(
    monkeypatch,
):
    clock, answers = Clock(monkeypatch), [None] * 12 + ["ready"]

    async def probe():
        return answers.pop(0)

    one = server(monkeypatch, Process())
    assert asyncio.run(one.until(probe, timeout_s=60.0, longest_pause_s=0.4)) == "ready"
    expected = [min(0.02 * 1.5**i, 0.4) for i in range(12)]
    assert clock.pauses == pytest.approx(expected)
    answers.extend([None] * 8 + ["ready"])
    asyncio.run(one.until(probe, timeout_s=60.0))
    assert clock.pauses[12:] == pytest.approx([min(0.02 * 1.5**i, 0.5) for i in range(8)])


async def test_a_server_has_as_long_as_it_was_given(monkeypatch):
    clock = Clock(monkeypatch)
    with pytest.raises(LaunchError, match="not ready after 7 s"):
        await server(monkeypatch, Process()).until(never, timeout_s=7.0)
    assert 7.0 < clock.now - 100.0 <= 7.5


def test_a_command_that_is_not_there_is_named(tmp_path):
    async def run():
        async with server_process(["/nowhere/server"], log_file=tmp_path / "log"):
            pass

    with pytest.raises(LaunchError, match=r"^/nowhere/server cannot be started: .*No such file"):
        asyncio.run(run())


async def test_the_log_is_that_of_this_start_and_its_end_alone(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"of before\n")
    async with server_process([*PYTHON, "print('a' * 30 + 'end', end='')"], log_file=log) as one:
        await until_ended(one)
        whole, end = one.log(), one.log(5)
        log.unlink()
        assert (whole, end, one.log()) == ("a" * 30 + "end", "aaend", "")


def test_the_end_of_a_log_is_sixteen_kibibytes(monkeypatch, tmp_path):
    one = server(monkeypatch, Process())
    one.log_file = tmp_path / "log"
    one.log_file.write_text("b" + "a" * (1 << 14))
    assert one.log() == "a" * (1 << 14)


def test_a_server_in_a_hurry_gets_less_time_and_never_more(
    monkeypatch,
):
    one = server(monkeypatch, Process())
    for seconds, left in ((STOP_S + 1.0, STOP_S), (3.0, 3.0), (4.0, 3.0), (1.0, 1.0)):
        one.hurry(seconds)
        assert one.stop_s == left


async def test_a_server_runs_in_its_folder_and_its_log_may_lie_in_a_new_one(tmp_path):
    log, folder = tmp_path / "new" / "logs" / "log", tmp_path / "here"
    folder.mkdir()
    script = [*PYTHON, "import os; print(os.getcwd())"]
    async with server_process(script, log_file=log, folder=str(folder)) as one:
        await until_ended(one)
    assert log.read_text() == f"{folder}\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700


class Life:
    """A server whose end is noticed after a number of checks."""

    def __init__(self, checks):
        self.checks, self.end = checks, LaunchError("the server ended")

    def ended(self):
        self.checks -= 1
        return self.end if self.checks < 0 else None


def failing(life, error):
    """Return the error of a block that raises `error`, or waits for ever."""

    async def run():
        limit = asyncio.timeout(5)
        try:
            async with limit, while_alive(life.ended):
                if error is not None:
                    raise error
                await asyncio.Event().wait()
        finally:
            assert not limit.expired()

    with pytest.raises((LaunchError, EndpointError, ValueError)) as caught:
        asyncio.run(run())
    return caught.value


def test_a_block_that_waits_is_stopped_by_the_end_of_its_server():
    assert failing(life := Life(0), None) is life.end


def test_a_failed_request_waits_for_the_news_that_its_server_has_ended():
    raised = EndpointError("no answer")
    assert failing(life := Life(3), raised) is life.end
    assert life.end.__cause__ is raised


def test_another_error_is_explained_only_by_a_server_that_has_ended_already():
    raised = ValueError("ours")
    assert failing(Life(3), raised) is raised
    assert failing(life := Life(0), raised) is life.end
    own = LaunchError("another reason")
    assert failing(Life(0), own) is own


async def test_a_server_gets_the_environment_the_pipe_and_a_session_of_its_own(
    tmp_path,
):
    script = (
        "import os, sys\n"
        "print(os.environ.get('ONE'), os.getsid(0) == os.getpid(), flush=True)\n"
        "print('stdin ended' if not sys.stdin.read() else 'stdin spoke', flush=True)\n"
    )
    async with server_process(
        [*PYTHON, script], log_file=tmp_path / "log", env={"ONE": "1"}
    ) as one:
        while "True" not in one.log():  # noqa: ASYNC110 - the log of another process
            await asyncio.sleep(0.01)
        one._process.stdin.close()
        await until_ended(one)
        assert gone(one.pid)
    assert (tmp_path / "log").read_text() == "1 True\nstdin ended\n"


def test_the_line_of_a_supervisor():
    line = supervise(["run", "-x"], grace_s=2.5, to_stop=["stop", "it"], at_end=["rm"])
    assert line[:2] == [sys.executable, "-I"]
    assert line[2].endswith("supervisor.py")
    assert line[3:] == ["2.5", "2", "stop", "it", "1", "rm", "run", "-x"]


@pytest.mark.parametrize("killed", [False, True])
async def test_the_last_command_runs_once_also_when_the_supervisor_was_killed(tmp_path, killed):
    note = tmp_path / "note"
    at_end = [*PYTHON, f"import os; open({str(note)!r}, 'a').write(os.environ['ONE'] + '.')"]
    environment = {**os.environ, "ONE": "1"}
    started = server_process(
        SLEEPS, log_file=tmp_path / "log", env=environment, grace_s=1.0, at_end=at_end
    )
    async with started as one:
        await asyncio.sleep(0.3)
        if killed:
            os.kill(one.pid, signal.SIGKILL)
    assert gone(one.pid)
    assert note.read_text() == "1."


def test_a_last_command_that_fails_ends_nothing_else(tmp_path, monkeypatch):
    ran = []

    def failing(command, **options):
        ran.append((command, options))
        raise subprocess.TimeoutExpired(command, 1.0)

    async def run():
        started = server_process(
            SLEEPS, log_file=tmp_path / "log", grace_s=1.0, at_end=["the last"]
        )
        async with started as one:
            os.kill(one.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(process_module.subprocess, "run", failing)
        asyncio.run(run())
    options = {"stdin": subprocess.DEVNULL, "env": None, "timeout": process_module.AT_END_S}
    assert ran == [(["the last"], options)]


@pytest.mark.parametrize(
    ("grace_s", "at_end", "supervised_s"),
    [(None, [], None), (1.5, [], 1.5), (1.5, ["the last"], 1.5 + process_module.AT_END_S)],
)
def test_a_supervisor_has_its_grace_and_the_time_of_the_last_command(
    monkeypatch,
    tmp_path,
    grace_s,
    at_end,
    supervised_s,
):
    given = []

    def start(*arguments):
        given.append(arguments[3])
        raise LaunchError("no more is needed")

    monkeypatch.setattr(process_module, "_start", start)

    async def run():
        async with server_process(
            SLEEPS, log_file=tmp_path / "log", grace_s=grace_s, at_end=at_end
        ):
            pass

    with pytest.raises(LaunchError, match="no more"):
        asyncio.run(run())
    assert given == [supervised_s]
