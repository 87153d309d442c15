"""Starts the stand-in as a process, for its own tests and those of our launchers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from serve_eval.launchers._standin.options import Flavour

FOLDER = Path(__file__).resolve().parent
"""The folder with `trtllm-serve`, to be first on PATH."""
READY_S = 30.0
HTTP = httpx.Client(
    trust_env=False, verify=False, timeout=20.0, limits=httpx.Limits(max_keepalive_connections=0)
)
"""One client for all, since each takes long to make; no connection outlives its request."""


def environment(
    flavour: Flavour = "v12",
    *,
    faults: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    answers: Path | None = None,
    load_s: float = 0.0,
    **more: str,
) -> dict[str, str]:
    """Return our environment with the stand-in as `trtllm-serve` and its variables."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("STANDIN_")}
    env |= {"PATH": f"{FOLDER}{os.pathsep}{env.get('PATH', '')}", "STANDIN_PYTHON": sys.executable}
    env |= {
        "SERVE_EVAL_PASS_ENV": "STANDIN_*",
        "STANDIN_FLAVOUR": flavour,
        "STANDIN_LOAD_S": str(load_s),
    }
    if faults is not None:
        env["STANDIN_FAULTS"] = json.dumps(faults)
    if answers is not None:
        env["STANDIN_ANSWERS"] = str(answers)
    return env | more


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    arguments: Sequence[str], log_file: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `trtllm-serve ARGUMENTS` for the length of the block, in its own process group."""
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [str(FOLDER / "trtllm-serve"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(env or environment()),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def wait_healthy(process: subprocess.Popen[bytes], port: int, log_file: Path) -> str:
    """Wait until GET /health of a local server is 200, and return its base URL without /v1."""
    url, deadline = f"http://localhost:{port}", time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log_file.read_text()
        with suppress(httpx.TransportError):
            if HTTP.get(f"{url}/health").status_code == 200:
                return url
        time.sleep(0.03)
    raise AssertionError(f"not healthy after {READY_S:g} s: {log_file.read_text()}")
