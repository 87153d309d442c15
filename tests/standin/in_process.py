"""Deployments of the stand-in in one process, on real sockets.

They start in a tenth of a second, since there is no process for each server. Faults that end a
process, such as `crash_after`, cannot be used here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.config import KEY, orchestrator
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.orchestrator import Orchestrating
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig

PERF_METRICS = {"return_perf_metrics": True, "perf_metrics_max_requests": 1000}


class Deployed(NamedTuple):
    """The orchestrator's base URL, and those of its workers by name, such as generation_0."""

    url: str
    workers: dict[str, str]

    def host(self, name: str) -> str:
        """Return the name of a worker as the orchestrator uses it."""
        return self.workers[name].removeprefix("http://").removesuffix("/v1")


@asynccontextmanager
async def aggregated(
    model: MadeUpModel | None = None,
    faults: Mapping[str, Any] | None = None,
    flavour: Flavour = "v12",
) -> AsyncIterator[str]:
    """Serve a whole model on one server and yield its base URL."""
    config = WorkerConfig(model="M", host="127.0.0.1", port=0, args={})
    async with serve_app(
        create(config, model or MadeUpModel(), Faults(**(faults or {})), flavour)
    ) as url:
        yield url


@asynccontextmanager
async def deployed(
    contexts: int,
    generations: int,
    *,
    answers: Path | None = None,
    model: Callable[[str], MadeUpModel] | None = None,
    faults: Mapping[str, Mapping[str, Any]] | None = None,
    flavour: Flavour = "v12",
    perf_metrics: bool = True,
    metrics_dir: Path | None = None,
    front: Mapping[str, Any] | None = None,
    tensor_parallel: Mapping[str, int] | None = None,
    wrong_pair: tuple[str, str] | None = None,
    greeted: bool = True,
    auth_key: str | None = None,
    front_ends: int = 1,
) -> AsyncIterator[Deployed]:
    """Run workers with an orchestrator.

    `model` (the source of answers), `faults` and `tensor_parallel` are by names of workers.
    `metrics_dir` is the orchestrator's perf_metrics_output_dir; `front` holds further keys of its
    file. With `wrong_pair`, the second worker cannot read the cache of the first. With `greeted`,
    the orchestrator sets its workers' clocks first, which takes 0.2 s each. All servers share
    `auth_key`. Each worker has `front_ends`.
    """
    args: dict[str, Any] = {"cache_transceiver_config": {"backend": "DEFAULT"}}
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
        document: dict[str, Any] = dict(PERF_METRICS) if perf_metrics else {}
        document |= {"perf_metrics_output_dir": str(metrics_dir)} if metrics_dir else {}
        for role, count in counts.items():
            document[f"{role}_servers"] = {
                "urls": [found.host(f"{role}_{i}") for i in range(count)]
            }
        shared = {KEY: auth_key} if auth_key else {}
        server = Orchestrating(
            orchestrator({**document, **(front or {}), **shared}, flavour), Faults(), flavour, 30.0
        )
        assert not greeted or await server.workers_healthy(10.0)
        await stack.enter_async_context(server.watching())
        yield Deployed(await stack.enter_async_context(serve_app(server.app)), workers)
