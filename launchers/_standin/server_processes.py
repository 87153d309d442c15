"""Run the process of a worker or an orchestrator: its port, its loading, its ranks, and its end.

In a fleet of orchestrator processes each routes for itself, where the real ones ask a coordinator:
clients of routers without a state cannot see the difference. Ranks of real MPI are started as in
TensorRT-LLM: mpi4py's pool spawns them from a thread. If that fails, the thread ends with a
traceback and the server waits for its ranks without a limit, as the real one does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.config import Orchestrator, check_storage, orchestrator
from serve_eval.launchers._standin.faults import Faults, find_faults
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.serving import (
    Ended,
    Loading,
    answers_while_loading,
    application,
    bind,
    log,
    note,
    serve,
)
from serve_eval.launchers._standin.worker_config import WorkerConfig, check_llm_args, worker

if TYPE_CHECKING:
    from serve_eval.launchers._standin.model import MadeUpModel


def run_worker(params: dict[str, Any], given: frozenset[str], flavour: Flavour) -> None:
    """Serve as the command line and its file say. Raise Ended, or what ends the real software."""
    config = worker(params["model"], params, given, flavour)
    if config.cluster:
        check_storage(config.cluster.cluster_uri, flavour)
    file = params["extra_llm_api_options"]
    trouble = find_faults("serve", config.role, config.port, file, config.args)
    listener = bind(config.host, config.port, flavour)
    _begin(config, trouble)
    load = partial(_load, config, trouble, flavour)
    loading = Loading(load) if answers_while_loading(flavour) else None
    if loading is None:
        load()
    # Imported while the port is bound, like everything slow.
    from serve_eval.launchers._standin.model import read_defaults
    from serve_eval.launchers._standin.worker import create

    defaults = read_defaults(
        config.model, params.get("generation_config"), os.environ.get("STANDIN_SAMPLING_DEFAULTS")
    )
    app = create(config, _choose_model(defaults), trouble, flavour)
    if loading is not None:
        loading.before(app)
    meanwhile = None
    ranks = _mpi_ranks(config.args)
    if config.cluster and config.role:
        from serve_eval.launchers._standin.cluster import stay_registered

        port = listener.getsockname()[1]
        meanwhile = stay_registered(
            config.cluster, config.role, config.host, port, heartbeats=not trouble.silent_discovery
        )
    asyncio.run(
        serve(
            app,
            listener,
            keepalive_s=5.0,
            meanwhile=meanwhile if ranks is None else ranks.until_the_end_of(meanwhile),
            early=loading is None,
            hangs=trouble.ignore_sigterm,
            report=config.report_addr,
            loading=loading,
        )
    )


def _begin(config: WorkerConfig, trouble: Faults) -> None:
    """Check the arguments of the model, once the port is bound."""
    if trouble.rank:
        log(f"Started rank process [{_rank()}]")
    if trouble.no_gpu:
        raise ValueError("No GPU devices found on the node")
    if trouble.tells_key:
        log(f"arguments: {config}")
    check_llm_args(config.args)
    if trouble.no_model:
        raise OSError(f"{config.model} is not a local folder and is not a valid model identifier")


def _load(config: WorkerConfig, trouble: Faults, flavour: Flavour) -> None:
    """Load a model, as slowly and with the ends that the variables ask for."""
    if count := wait_for_leader():
        log(f"start MpiSession with {count} workers")
    load_s = float(os.environ.get("STANDIN_LOAD_S", "0"))
    log(f"Loading {config.model}")
    for part in range(1, 11 if load_s else 1):
        time.sleep(load_s / 10)
        log(f"Loading {config.model}: {10 * part}%")
    if trouble.says:
        sys.stderr.write(f"{trouble.says}\n")
        until = time.monotonic() + trouble.says_s
        while time.monotonic() < until:
            time.sleep(0 if trouble.says_busy else until - time.monotonic())
    if trouble.hang_at_start or trouble.spin_at_start:
        _hang(trouble)
    if trouble.crash_at_start is not None:
        sys.stderr.write(f"{trouble.last_words}\n")
        raise Ended(trouble.crash_at_start)
    if flavour == "main" and trouble.no_transceiver:
        log("cache_transceiver is disabled")


def _choose_model(defaults: Mapping[str, float]) -> MadeUpModel:
    """Return the model that the variables describe."""
    from serve_eval.launchers._standin.model import MadeUpModel

    answers = os.environ.get("STANDIN_ANSWERS")
    given_run = os.environ.get("STANDIN_RUN", "0")
    number = random.getrandbits(32) if given_run == "new" else int(given_run)
    varied = os.environ.get("STANDIN_VARIED") == "1"
    return MadeUpModel(
        Path(answers) if answers else None,
        seed=int(os.environ.get("STANDIN_SEED", "0")),
        run=f"{number}:{os.environ.get('CUDA_VISIBLE_DEVICES')}" if varied else number,
        skilled=os.environ.get("STANDIN_SKILLS") == "1",
        varied=varied,
        defaults=defaults,
    )


def _hang(trouble: Faults) -> None:
    """Keep the process alive after the main thread has ended."""
    if trouble.ignore_sigterm and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("says its last words")
    sys.stderr.write(f"{trouble.last_words}\n")
    while True:
        time.sleep(0 if trouble.spin_at_start else 60)


def _mpi_ranks(args: Mapping[str, Any]) -> Any:
    """Return the MPI ranks once all run, or None without STANDIN_MPI.

    Never returns if MPI starts no ranks.
    """
    if os.environ.get("STANDIN_MPI") != "1":
        return None

    sizes = [args.get(f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "context")]
    return Ranks(sizes[0] * sizes[1] * sizes[2])


def _rank() -> int:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);"
        " time.sleep(120)"
    )
    rank = subprocess.Popen(  # noqa: S603 - our own words
        [sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE
    )
    assert rank.stdout is not None
    rank.stdout.readline()
    return rank.pid


POLL_S = 0.1


def wait_for_leader() -> int | None:
    """Return the number of ranks of the leader; None for a server that starts its own."""
    if os.environ.get("TLLM_SPAWN_PROXY_PROCESS") != "1":
        return None
    kind, _, address = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].partition("://")
    host, _, port = address.rpartition(":")
    while True:
        with socket.socket(socket.AF_UNIX if kind == "ipc" else socket.AF_INET) as leader:
            try:
                leader.connect(address if kind == "ipc" else (host, int(port)))
                leader.sendall(
                    f"join {os.environ['TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY']}\n".encode()
                )
                if answer := leader.recv(20):
                    return int(answer)
            except OSError:
                pass
        time.sleep(POLL_S)


def run_orchestrator(params: dict[str, Any], flavour: Flavour) -> None:
    """Serve as the command line and its file say. Raise Ended, or what ends the real software."""
    path = params["config_file"]
    config = orchestrator(yaml.safe_load(Path(path).read_text()) or {}, flavour)
    if style := params.get("schedule_style"):
        config = replace(config, schedule_style=style)
    member = number_in_fleet()
    if config.num_workers > 1 and member is None:
        run_coordinator(config, flavour)
        return
    listener = bind(
        config.hostname,
        config.port,  # type: ignore[arg-type]
        flavour,
        shared=member is not None,
    )
    trouble = find_faults("disaggregated", None, config.port, path)
    default = "3" if flavour == "main" else "0"
    code = int(os.environ.get("STANDIN_START_TIMEOUT_RC", default))
    # Imported while the port is bound, like everything slow.
    from serve_eval.launchers._standin.orchestrator import Orchestrating

    server = Orchestrating(config, trouble, flavour, params["request_timeout"], process=member or 0)

    async def workers() -> None:
        if not await server.workers_healthy(params["server_start_timeout"]):
            sys.stderr.write("TimeoutError: Timeout waiting for context and generation servers\n")
            raise Ended(code)

    report = params.get("report_addr")
    running = serve(
        server.app,
        listener,
        keepalive_s=10.0,
        before=None if config.cluster else workers,
        meanwhile=server.watching(),
        hangs=trouble.ignore_sigterm,
        report=Path(report) if report else None,
    )
    asyncio.run(running)


MEMBER = "STANDIN_FLEET_MEMBER"
"""Variable with the number of a process of a fleet, which the coordinator starts."""
END_S = 5.0


def number_in_fleet() -> int | None:
    """Return the number of this process in its fleet; None if it is in none."""
    told = os.environ.get(MEMBER)
    return None if told is None else int(told)


def run_coordinator(config: Orchestrator, flavour: Flavour) -> None:
    """Start the processes of a fleet, with our command line, and answer for them until the end."""
    listener = bind(config.hostname, int(config.port) - 1, flavour)
    members = [
        subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, *sys.orig_argv[1:]], env={**os.environ, MEMBER: str(number)}
        )
        for number in range(config.num_workers)
    ]
    app = application()

    async def health(request: web.Request) -> web.Response:
        there = all(one.poll() is None for one in members)
        return web.Response(status=200 if there else 503)

    async def cluster_info(request: web.Request) -> web.Response:
        return json_response(200, encode({"is_ready": True}))

    app.router.add_get("/health", health)
    app.router.add_get("/cluster_info", cluster_info)
    try:
        asyncio.run(serve(app, listener, keepalive_s=10.0))
    finally:
        for one in members:
            one.terminate()
        for one in members:
            try:
                one.wait(END_S)
            except subprocess.TimeoutExpired:
                one.kill()


ALONE_S = 600.0
"""Seconds after which a rank ends on its own: it does not notice that its server is gone."""


class Ranks:
    """As many processes as the server has GPUs, also with tp 1."""

    def __init__(self, count: int) -> None:
        from mpi4py import MPI
        from mpi4py.futures import MPIPoolExecutor

        from serve_eval.launchers._standin.serving import log

        log(
            "rank 0 using MpiPoolSession to spawn MPI processes"
            f" ({MPI.Get_library_version().split(',')[0]})"
        )
        with socket.create_server(("127.0.0.1", 0), backlog=count) as door:
            self.pool = MPIPoolExecutor(max_workers=count, path=sys.path)
            for _ in range(count):
                self.pool.submit(attend, door.getsockname()[1])
            self.lines = [door.accept()[0] for _ in range(count)]
        for line in self.lines:
            about = json.loads(line.makefile().readline())
            log(f"MPI rank {about['rank']} of {about['size']}: process [{about['pid']}]")

    @asynccontextmanager
    async def until_the_end_of(
        self, meanwhile: AbstractAsyncContextManager[None] | None
    ) -> AsyncIterator[None]:
        """Run the block within `meanwhile`, then end the ranks."""
        async with meanwhile or nullcontext():
            yield
        for line in self.lines:
            line.sendall(b"end")
        self.pool.shutdown()


def attend(port: int) -> None:
    """Run a rank until it is asked to end."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    with socket.create_connection(("127.0.0.1", port)) as line:
        about = {
            "rank": MPI.COMM_WORLD.Get_rank(),
            "size": MPI.COMM_WORLD.Get_size(),
            "pid": os.getpid(),
        }
        line.sendall(json.dumps(about).encode() + b"\n")
        if line.recv(3) != b"end":
            time.sleep(ALONE_S)
