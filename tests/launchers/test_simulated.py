import asyncio
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import typing
from dataclasses import fields, replace
from typing import Any

import aiohttp
import msgspec
import pytest

from serve_eval.errors import EndpointError, LaunchError, PlanError
from serve_eval.launchers import simulated
from serve_eval.launchers._process import server_process as process_module
from serve_eval.launchers._process.server_process import server_process
from serve_eval.launchers._simulated.__main__ import IN_PROCESS_ONLY, parse
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from serve_eval.schema.media import prompt_sha256
from tests.launchers.conftest import gone, wait_until_gone
from tests.root import ROOT

QUESTIONS = [f"question {i}" for i in range(50)]


def write_answer_file(path, probability):
    lines = [
        {
            "sha256": prompt_sha256(q),
            "right": "right",
            "wrong": "wrong",
            "probability": probability("task", q),
        }
        for q in QUESTIONS
    ]
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))


@pytest.fixture
def context(tmp_path):
    return LaunchContext(
        model="a/b", log_dir=tmp_path / "run" / "logs", write_answer_file=write_answer_file
    )


async def answer(endpoint, prompt):
    body = {"model": endpoint.model, "prompt": prompt}
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(endpoint.base_url + "/completions", json=body) as reply,
    ):
        assert reply.status == 200
        text = (await reply.json())["choices"][0]["text"]
        assert isinstance(text, str)
        return text


def launch_and(context, story, **options):
    async def tell():
        async with simulated.launch(context, simulated.SimulatedOptions(**options)) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


def test_it_starts_answers_and_leaves_nothing_behind(context):
    async def story(endpoint):
        assert endpoint.base_url.startswith("http://127.0.0.1:")
        assert endpoint.model == "a/b"
        assert [await answer(endpoint, q) for q in QUESTIONS] == ["right"] * len(QUESTIONS)
        pid = endpoint.info.pid
        assert os.getpgid(pid) == os.getsid(pid) == pid
        return endpoint

    endpoint = launch_and(context, story, accuracy={"task": 1.0})
    pid = endpoint.info.pid
    assert isinstance(pid, int)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert endpoint.info.launcher == "simulated"
    log_file = context.log_dir / "simulated.log"
    assert stat.S_IMODE(log_file.stat().st_mode) == 0o600
    assert log_file.read_text() == f"simulated endpoint at {endpoint.base_url}\n"
    assert stat.S_IMODE(context.log_dir.stat().st_mode) == 0o700
    assert sorted(file.name for file in context.log_dir.iterdir()) == [
        "simulated.answers.jsonl",
        "simulated.log",
    ]


def test_it_ends_when_the_run_is_cancelled_or_fails(context):
    pids = []

    async def failing(endpoint):
        pids.append(endpoint.info.pid)
        raise RuntimeError("the run failed")

    async def cancelled():
        async with simulated.launch(context, simulated.SimulatedOptions()) as endpoint:
            pids.append(endpoint.info.pid)
            typing.cast(Any, asyncio.current_task()).cancel()
            await asyncio.sleep(60)

    with pytest.raises(RuntimeError, match="the run failed"):
        launch_and(context, failing)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert len(pids) == 2
    assert all(map(gone, pids))


def test_the_options_reach_the_server(context):
    async def story(endpoint):
        assert await answer(endpoint, QUESTIONS[0]) == "wrong"
        async with (
            aiohttp.ClientSession() as session,
            session.get(endpoint.base_url + "/models") as reply,
        ):
            assert reply.status == 404

    launch_and(replace(context, model=None), story, accuracy=1.0, damage=1.0, no_models=True)


def test_a_server_that_dies_at_start_is_an_error_with_its_log(context):
    async def story(endpoint):
        raise AssertionError("it did not die")

    broken = replace(
        context, write_answer_file=lambda path, probability: path.write_text("no JSON")
    )
    for _ in range(2):  # a second attempt quotes only its own lines
        with pytest.raises(LaunchError) as caught:
            launch_and(broken, story)
        assert "exit code 1 before it was ready" in str(caught.value)
        assert str(caught.value).count("JSON is malformed") == 1
        assert "simulated.log" in caught.value.hint


def test_a_server_that_ends_while_it_is_used_ends_the_block_with_the_cause(
    context,
):
    async def story(endpoint):
        for q in QUESTIONS[:3]:
            await answer(endpoint, q)
        with pytest.raises(aiohttp.ClientConnectionError):
            await answer(endpoint, QUESTIONS[3])
        await asyncio.Event().wait()

    with pytest.raises(
        LaunchError, match=r"(?s)ended with exit code 1\n.*crashing after 3 requests, as configured"
    ):
        launch_and(context, story, crash_after=3)


def test_the_end_of_a_server_is_the_cause_of_what_it_did_to_a_request(
    context,
):
    async def story(endpoint):
        for q in QUESTIONS[:3]:
            await answer(endpoint, q)
        with pytest.raises(aiohttp.ClientConnectionError):
            await answer(endpoint, QUESTIONS[3])
        raise EndpointError("no server listens any more")

    with pytest.raises(LaunchError, match="crashing after 3 requests, as configured"):
        launch_and(context, story, crash_after=3)


def test_without_answers_there_is_nothing_to_simulate(context):
    async def story(endpoint):
        raise AssertionError("it started")

    with pytest.raises(LaunchError, match="needs the answers of the tasks"):
        launch_and(replace(context, write_answer_file=None), story)


def test_the_simulator_ends_when_its_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, pathlib, sys\n"
        "from serve_eval.launchers import simulated\n"
        "from serve_eval.schema import LaunchContext\n"
        "async def main():\n"
        "    context = LaunchContext(model='m', log_dir=pathlib.Path(sys.argv[1]),\n"
        "                            write_answer_file=lambda path, p: path.touch())\n"
        "    async with simulated.launch(context, simulated.SimulatedOptions()) as endpoint:\n"
        "        print(endpoint.info.pid, endpoint.base_url, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "logs")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            pid, base_url = parent.stdout.readline().split()
            assert not gone(int(pid))
        finally:
            parent.kill()
    wait_until_gone(int(pid))
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(base_url.rpartition(":")[2].partition("/")[0])))


# The command line


def test_the_command_names_only_what_differs_from_the_default(context):
    options = {
        "accuracy": 0.5,
        "damage": 0.1,
        "failure_kind": "html",
        "no_models": True,
        "seed": 0,
        "crash_after": 4,
    }
    [command] = simulated.commands(context, simulated.SimulatedOptions(**options))
    assert command[1:6] == ["-P", "-m", "serve_eval.launchers._simulated", "--model", "a/b"]
    assert command[10:] == [
        "--damage",
        "0.1",
        "--failure-kind",
        "html",
        "--crash-after",
        "4",
        "--no-models",
    ]
    assert not context.log_dir.exists()
    config, port, ready_file = parse(command[4:])
    assert (config.damage, config.failure_kind, config.no_models, config.crash_after) == (
        0.1,
        "html",
        True,
        4,
    )
    assert port == 0
    assert (config.answers, ready_file) == (
        context.log_dir / "simulated.answers.jsonl",
        context.log_dir / "simulated.url",
    )


def test_all_that_the_simulator_can_is_an_option_of_the_launcher():
    shared = {one.name for one in fields(SimulatorConfig)} - {"answers", "model", *IN_PROCESS_ONLY}
    assert set(registry.options_of(simulated.launch)) == shared | {"accuracy", "flip_rate"}


def test_options_of_a_plan_are_checked():
    given = {"accuracy": {"mmlu": 0.6}, "flip_rate": 0.05, "failure_kind": "429", "latency_s": 1}
    assert registry.check_options(simulated.launch, given, "launcher") == given
    assert "simulated" in registry.summary("serve_eval.launchers", "simulated")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"failure_rate": 2.0},
            "launcher.simulated.failure_rate is 2.0, which is not between 0 and 1",
        ),
        ({"damage": -0.1}, "launcher.simulated.damage is -0.1, which is not between 0 and 1"),
        ({"latency_s": -1.0}, "launcher.simulated.latency_s is -1.0, which is negative"),
        ({"crash_after": -1}, "launcher.simulated.crash_after is -1, which is negative"),
        ({"accuracy": 1.5}, "an accuracy of 1.5 is not between 0 and 1"),
        ({"accuracy": 0.99, "flip_rate": 0.2}, "the accuracy is between 0.3 and 0.7"),
    ],
)
def test_sizes_out_of_range_are_refused_before_anything_starts(context, options, said):
    with pytest.raises(PlanError, match=re.escape(said)):
        simulated.commands(context, simulated.SimulatedOptions(**options))
    assert not context.log_dir.exists()


# Any server process


async def quick_end(script, log_file):
    """Start a Python script, wait for its first line of output, and leave."""

    async def first_line():
        return b"\n" in log_file.read_bytes() or None

    async with server_process([sys.executable, "-c", script], log_file=log_file) as server:
        await server.until(first_line, timeout_s=10)
    assert server.exit_code() is not None
    return server.pid


async def test_a_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "STOP_S", 0.2)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up',"
        " flush=True); time.sleep(60)"
    )
    assert gone(await quick_end(deaf, tmp_path / "log"))


async def test_what_a_server_started_ends_with_it(tmp_path):
    parent = (
        "import subprocess, sys, time\ndeaf = 'import signal as s, time; s.signal(s.SIGTERM,"
        " s.SIG_IGN); print(0, flush=True); time.sleep(60)'\nchild ="
        " subprocess.Popen([sys.executable, '-c', deaf],"
        " stdout=subprocess.PIPE)\nchild.stdout.readline(); print(child.pid, flush=True);"
        " time.sleep(60)"
    )
    await quick_end(parent, tmp_path / "log")
    wait_until_gone(int((tmp_path / "log").read_text()))


async def test_a_server_that_never_gets_ready_is_an_error_in_time(tmp_path):
    async def never():
        return None

    command = [
        sys.executable,
        "-c",
        "import time; print('loading', flush=True); time.sleep(60)",
    ]
    async with server_process(command, log_file=tmp_path / "log") as server:
        while not server.log():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(LaunchError, match=r"not ready after 0\.1 s\n  loading"):
            await server.until(never, timeout_s=0.1)
    assert gone(server.pid)


def test_a_command_that_does_not_exist_is_an_error(tmp_path):
    async def story():
        async with server_process([str(tmp_path / "nothing")], log_file=tmp_path / "log"):
            raise AssertionError("it started")

    with pytest.raises(LaunchError, match="cannot be started"):
        asyncio.run(story())


async def test_sigterm_ends_the_simulator_cleanly(tmp_path):
    ready = tmp_path / "url"

    async def up():
        return ready.exists() or None

    command = [
        sys.executable,
        "-m",
        "serve_eval.launchers._simulated",
        "--ready-file",
        str(ready),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    async with server_process(command, log_file=tmp_path / "log", env=env) as server:
        await server.until(up, timeout_s=10)
        os.kill(server.pid, signal.SIGTERM)
        while server.exit_code() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert server.exit_code() == 0
