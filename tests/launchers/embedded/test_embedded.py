"""Test the launcher of the embedded model: it starts like others and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import embedded
from serve_eval.plugins import registry
from serve_eval.schema import Endpoint, LaunchContext
from tests.cli.command import environment, serve_eval
from tests.launchers.machine import gone, wait_until_gone

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def context(tmp_path: Path) -> LaunchContext:
    return LaunchContext(model=None, log_dir=tmp_path / "run" / "logs")


def launch_and(
    context: LaunchContext, story: Callable[[Endpoint], Awaitable[Any]], **options: Any
) -> Any:
    async def tell() -> Any:
        async with embedded.launch(context, embedded.EmbeddedOptions(**options)) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


async def ask(endpoint: Endpoint, model: str, **more: object) -> Any:
    body = {"model": model, "prompt": "2+2=", "max_tokens": 4, "temperature": 0, **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(endpoint.base_url + "/completions", json=body) as reply,
    ):
        assert reply.status == 200
        return await reply.json()


def test_it_serves_two_models_and_leaves_nothing_behind(
    context: LaunchContext, folder: Path
) -> None:
    async def story(endpoint: Endpoint) -> Endpoint:
        assert endpoint.model == "embedded"
        sound = await ask(endpoint, "embedded", max_tokens=30)
        hurt = await ask(endpoint, "hurt", max_tokens=30)
        assert sound["choices"][0]["text"] != hurt["choices"][0]["text"]
        pid = endpoint.info.pid
        assert os.getpgid(pid) == os.getsid(pid) == pid
        threads = (
            {entry.name for entry in Path(f"/proc/{pid}/task").iterdir()}
            if Path("/proc/self").exists()
            else {"1"}
        )
        assert len(threads) == 1  # numpy uses one core
        return endpoint

    endpoint: Endpoint = launch_and(context, story, weights=str(folder), also={"hurt": "int3"})
    assert gone(endpoint.info.pid)
    assert (endpoint.info.launcher, endpoint.info.damage) == ("embedded", "none")
    assert [file.name for file in context.log_dir.iterdir()] == ["embedded.log"]
    assert (
        context.log_dir / "embedded.log"
    ).read_text() == f"embedded model at {endpoint.base_url}\n"
    assert stat.S_IMODE(context.log_dir.stat().st_mode) == 0o700


def test_it_ends_when_the_run_fails_and_when_its_parent_is_killed(
    context: LaunchContext, folder: Path, tmp_path: Path
) -> None:
    pids: list[int] = []

    async def failing(endpoint: Endpoint) -> None:
        pids.append(endpoint.info.pid)
        raise RuntimeError("the run failed")

    with pytest.raises(RuntimeError, match="the run failed"):
        launch_and(context, failing, weights=str(folder))
    assert all(map(gone, pids))
    (script := tmp_path / "parent.py").write_text(
        "import asyncio, pathlib, sys\nfrom launchers import embedded\nfrom serve_eval.schema"
        " import LaunchContext\nasync def main():\n    context = LaunchContext(model='m',"
        " log_dir=pathlib.Path(sys.argv[1]))\n    async with embedded.launch(context,"
        " embedded.EmbeddedOptions(weights=sys.argv[2])) as endpoint:\n       "
        " print(endpoint.info.pid, flush=True)\n        await"
        " asyncio.sleep(60)\nasyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "logs"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert not gone(pid)
        finally:
            parent.kill()
    wait_until_gone(pid)


def test_what_cannot_be_served_is_an_error_that_says_why(
    context: LaunchContext, folder: Path, tmp_path: Path
) -> None:
    async def story(endpoint: Endpoint) -> None:
        raise AssertionError("it started")

    with pytest.raises(LaunchError, match=r"has no config\.json"):
        launch_and(context, story, weights=str(tmp_path / "nowhere"))
    with pytest.raises(LaunchError, match="`also` names embedded"):
        launch_and(context, story, weights=str(folder), also={"embedded": "int8"})
    (broken := tmp_path / "broken").mkdir()
    (broken / "config.json").write_text("{}")
    with pytest.raises(
        LaunchError, match=r"(?s)before it was ready.*broken cannot be served: .*tokenizer\.json"
    ):
        launch_and(context, story, weights=str(broken))
    with pytest.raises(PlanError, match=r"launcher\.damage: Invalid enum value .int2."):
        registry.check_options(embedded.launch, {"damage": "int2"}, "launcher")


def test_the_command_says_what_is_served(context: LaunchContext, folder: Path) -> None:
    [command] = embedded.commands(
        context,
        embedded.EmbeddedOptions(
            weights=str(folder),
            damage="int8",
            also={"a=b": "int4-g32"},
            strict_fields=True,
            port=8123,
        ),
    )
    assert command[1:6] == ["-P", "-m", "serve_eval.launchers._embedded", "--weights", str(folder)]
    assert command[6:] == [
        *(
            "--model",
            "embedded=int8",
            "--model",
            "a=b=int4-g32",
            "--strict-fields",
            "--port",
            "8123",
        ),
        *("--ready-file", str(context.log_dir / "embedded.url")),
    ]
    assert not context.log_dir.exists()
    shown = serve_eval("serve", "embedded", "--set", f"launcher.weights={folder}", "--dry-run")
    assert shown.returncode == 0
    assert (
        f"-P -m serve_eval.launchers._embedded --weights {folder} --model embedded=none"
        in shown.stdout
    )


@pytest.mark.slow
def test_serve_holds_it_until_it_is_asked_to_end(folder: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "serve_eval",
            "serve",
            "embedded",
            "--set",
            f"launcher.weights={folder}",
        ],
        env=environment(XDG_STATE_HOME=str(tmp_path / "state")),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        base_url = holder.stdout.readline().split()[-1]
        assert holder.stdout.readline().split() == ["model:", "embedded"]
        answer = asyncio.run(ask(Endpoint(base_url=base_url), "embedded"))
        assert answer["usage"]["prompt_tokens"] == 4
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(timeout=30) == 0
    with pytest.raises(aiohttp.ClientConnectionError):
        asyncio.run(ask(Endpoint(base_url=base_url), "embedded"))
