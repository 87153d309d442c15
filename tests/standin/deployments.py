"""Start the stand-in as a process or within this one, with an answer file.

They start in a tenth of a second, since there is no process for each server. Faults that end a
process, such as `crash_after`, cannot be used here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.config import KEY, orchestrator
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers._standin.orchestrator import Orchestrating
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig
from serve_eval.schema.media import prompt_sha256

FOLDER = Path(__file__).resolve().parent
"""The folder with `trtllm-serve`, to be first on PATH."""
READY_S = 30.0
HTTP = httpx.Client(
    trust_env=False, verify=False, timeout=20.0, limits=httpx.Limits(max_keepalive_connections=0)
)
"""One client for all, since each takes long to make; no connection outlives its request."""


def environment(
    flavour="v12",
    *,
    faults=None,
    answers=None,
    load_s=0.0,
    **more,
):
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(arguments, log_file, env=None):
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


def wait_healthy(process, port, log_file):
    """Wait until GET /health of a local server is 200, and return its base URL without /v1."""
    url, deadline = f"http://localhost:{port}", time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log_file.read_text()
        with suppress(httpx.TransportError):
            if HTTP.get(f"{url}/health").status_code == 200:
                return url
        time.sleep(0.03)
    raise AssertionError(f"not healthy after {READY_S:g} s: {log_file.read_text()}")


PERF_METRICS = {"return_perf_metrics": True, "perf_metrics_max_requests": 1000}


class Deployed(NamedTuple):
    """The orchestrator's base URL, and those of its workers by name, such as generation_0."""

    url: str
    workers: dict[str, str]

    def host(self, name):
        """Return the name of a worker as the orchestrator uses it."""
        return self.workers[name].removeprefix("http://").removesuffix("/v1")


@asynccontextmanager
async def aggregated(
    model=None,
    faults=None,
    flavour="v12",
):
    """Serve a whole model on one server and yield its base URL."""
    config = WorkerConfig(model="M", host="127.0.0.1", port=0, args={})
    async with serve_app(
        create(config, model or MadeUpModel(), Faults(**(faults or {})), flavour)
    ) as url:
        yield url


@asynccontextmanager
async def deployed(
    contexts,
    generations,
    *,
    answers=None,
    model=None,
    faults=None,
    flavour="v12",
    perf_metrics=True,
    metrics_dir=None,
    front=None,
    tensor_parallel=None,
    wrong_pair=None,
    greeted=True,
    auth_key=None,
    front_ends=1,
    router=None,
):
    """Run workers with an orchestrator.

    `model` (the source of answers), `faults` and `tensor_parallel` are by names of workers.
    `metrics_dir` is the orchestrator's perf_metrics_output_dir; `front` holds further keys of its
    file. With `wrong_pair`, the second worker cannot read the cache of the first. With `greeted`,
    the orchestrator sets its workers' clocks first, which takes 0.2 s each. All servers share
    `auth_key`. Each worker has `front_ends`. `router` is the type of that of the context workers.
    """
    args = {"cache_transceiver_config": {"backend": "DEFAULT"}}
    args |= PERF_METRICS if perf_metrics else {}
    counts = {"context": contexts, "generation": generations}
    async with AsyncExitStack() as stack:
        workers = {}
        for name in (f"{role}_{i}" for role, count in counts.items() for i in range(count)):
            own = {**args, "tensor_parallel_size": (tensor_parallel or {}).get(name, 1)}
            config = WorkerConfig(
                model="M",
                host="127.0.0.1",
                port=0,
                args=own,
                auth_key=auth_key,
                front_ends=front_ends,
            )
            wrong = dict((faults or {}).get(name, {}))
            if wrong_pair is not None and name == wrong_pair[1]:
                wrong["wrong_pair"] = {"port": urlsplit(workers[wrong_pair[0]]).port}
            app = create(
                config, model(name) if model else MadeUpModel(answers), Faults(**wrong), flavour
            )
            workers[name] = await stack.enter_async_context(serve_app(app))
        found = Deployed("", workers)
        document = dict(PERF_METRICS) if perf_metrics else {}
        document |= {"perf_metrics_output_dir": str(metrics_dir)} if metrics_dir else {}
        for role, count in counts.items():
            document[f"{role}_servers"] = {
                "urls": [found.host(f"{role}_{i}") for i in range(count)]
            }
        if router is not None:
            document["context_servers"]["router"] = {"type": router}
        shared = {KEY: auth_key} if auth_key else {}
        server = Orchestrating(
            orchestrator({**document, **(front or {}), **shared}, flavour), Faults(), flavour, 30.0
        )
        assert not greeted or await server.workers_healthy(10.0)
        await stack.enter_async_context(server.watching())
        yield Deployed(await stack.enter_async_context(serve_app(server.app)), workers)


def write_answers(plan, path, chance=None):
    """Write the file and return it.

    `chance` is the probability of a right answer by task and sample; without it, three of four
    answers are right.
    """
    with path.open("wb") as file:
        for p in prepare(plan):
            for number, sample in enumerate(p.dataset.samples):
                right, wrong = p.task.answers(sample)
                given = chance(p.task.name, sample.id) if chance else float(number % 4 > 0)
                line = {"sha256": prompt_sha256(sample.prompt), "right": right, "wrong": wrong}
                file.write(msgspec.json.encode({**line, "probability": given}) + b"\n")
    return path
