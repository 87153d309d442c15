"""What goes wrong on demand."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.standin.model import BOS, Model, decode, encode
from tests.standin.options import Flavour
from tests.standin.process import HTTP, READY_S, environment, free_port, running, wait_healthy

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def post(url: str, body: dict[str, Any], route: str = "completions") -> httpx.Response:
    return HTTP.post(f"{url}/v1/{route}", json=body)


@pytest.mark.slow
def test_an_engine_that_dies_leaves_a_server_without_one(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with running(["M", "--port", str(port)], log, environment(faults={"unhealthy_after": 1})) as process:
        url = wait_healthy(process, port, log)
        assert post(url, TEXT).status_code == 200
        assert post(url, TEXT).json()["object"] == "error"
        assert HTTP.get(f"{url}/health").status_code == 503
        assert process.poll() is None


@pytest.mark.slow
def test_or_ends_it(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with running(["M", "--port", str(port)], log, environment(faults={"executor_crash_after": 0})) as process:
        assert post(wait_healthy(process, port, log), TEXT).text == "null"
        assert process.wait(READY_S) == -signal.SIGINT


def test_faults_of_one_process_and_a_crash(tmp_path: Path) -> None:
    faults = [{"crash_after": 1, "corrupt_after": 0, "when": {"gpus": "1"}}, {"error_after": 0, "when": {"gpus": "0"}}]
    port, log = free_port(), tmp_path / "log"
    env = environment(faults=faults, CUDA_VISIBLE_DEVICES="1")
    with running(["M", "--port", str(port)], log, env) as process:
        answer = post(wait_healthy(process, port, log), TEXT)
        assert answer.json()["choices"][0]["text"] != decode(Model().answer([BOS, *encode("hi")]))
        with pytest.raises(httpx.TransportError):
            post(f"http://localhost:{port}", TEXT)
        assert process.wait(READY_S) == 1


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_streams_that_fail(flavour: Flavour, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with running(["M", "--port", str(port)], log, environment(flavour, faults={"fail_stream": 2})) as process:
        url = wait_healthy(process, port, log)
        if flavour == "v12":
            with pytest.raises(httpx.TransportError):
                post(url, {**TEXT, "stream": True})
        else:
            error, done = post(url, {**TEXT, "stream": True}).text.split("\n\n")[2:4]
            assert (set(json.loads(error[6:])), done) == ({"error"}, "data: [DONE]")
        with pytest.raises(httpx.TransportError):
            post(url, {**CHAT, "stream": True}, "chat/completions")


@pytest.mark.slow
def test_hangs(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    faults = {"hang_after": 0, "ignore_sigterm": True}
    with running(["M", "--port", str(port)], log, environment(faults=faults)) as process:
        url = wait_healthy(process, port, log)
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(f"{url}/v1/completions", json=TEXT, timeout=1)
        assert HTTP.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGKILL)
        assert process.wait(READY_S) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "code"), [({"crash_at_start": 9}, 9), ({"no_gpu": True}, 1)])
def test_a_start_that_fails(faults: dict[str, Any], code: int, tmp_path: Path) -> None:
    with running(["M", "--port", str(free_port())], tmp_path / "log", environment(faults=faults)) as process:
        assert process.wait(READY_S) == code
