"""The stand-in as a process.

It reads these variables:

* STANDIN_FLAVOUR: v12 (default), old or main.
* STANDIN_LOAD_S: seconds of loading.
* STANDIN_ANSWERS: an answer file of the simulated endpoint. STANDIN_SEED and STANDIN_RUN choose
  among its answers. STANDIN_RUN=new makes another choice at each start, STANDIN_VARIED=1 for every
  request and every worker.
* STANDIN_FAULTS: see `faults`.
* STANDIN_POLL_S: seconds between an orchestrator's checks of its workers' health (3, as in the real
  one).
* STANDIN_MPI: 1 starts tp * pp * cp ranks of real MPI with mpi4py: see `ranks`.
* STANDIN_START_TIMEOUT_RC: exit code of an orchestrator whose workers do not appear (0 in the 1.2
  line, 3 on main).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.standin import arguments
from tests.standin.options import Flavour


def main() -> None:
    given = os.environ.get("STANDIN_FLAVOUR")
    flavour: Flavour = "main" if given == "main" else "old" if given == "old" else "v12"

    def run(command: str, params: dict[str, Any], given: frozenset[str]) -> None:
        from tests.standin.serving import Ended

        try:
            if command == "serve":
                _worker(params, given, flavour)
            elif command == "disaggregated":
                _orchestrator(params, flavour)
            else:
                raise NotImplementedError(f"the stand-in has no {command}")
        except Ended as end:
            sys.exit(end.code)

    arguments.group(flavour, run)(prog_name="trtllm-serve")


# Slow imports come after the command line is parsed.


def _faults(
    command: str,
    role: str | None,
    port: object,
    config: str | None,
    args: Mapping[str, Any] | None = None,
) -> Any:
    from tests.standin.faults import faults, flatten

    place = flatten(args or {})
    place |= {"command": command, "role": role and role.lower(), "port": port}
    place |= {
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "config": config and Path(config).name,
    }
    return faults(os.environ.get("STANDIN_FAULTS"), place)


def _worker(params: dict[str, Any], given: frozenset[str], flavour: Flavour) -> None:
    from tests.standin.config import check_llm_args, check_storage, worker
    from tests.standin.leader import joined
    from tests.standin.serving import Ended, bind, log, serve
    from tests.standin.starting import Loading

    config = worker(params["model"], params, given, flavour)
    if config.cluster:
        check_storage(config.cluster.cluster_uri, flavour)
    file = params["extra_llm_api_options"]
    trouble = _faults("serve", config.role, config.port, file, config.args)
    listener = bind(config.host, config.port, flavour)
    if trouble.rank:
        log(f"Started rank process [{_rank()}]")
    if trouble.no_gpu:
        raise ValueError("No GPU devices found on the node")
    if trouble.tells_key:
        log(f"arguments: {config}")
    check_llm_args(config.args)
    if trouble.no_model:
        raise OSError(f"{config.model} is not a local folder and is not a valid model identifier")

    def load() -> None:
        if count := joined():
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

    loading = Loading(load) if flavour == "main" else None
    if loading is None:
        load()
    # Imported while the port is bound, like everything slow.
    from tests.standin.model import Model
    from tests.standin.worker import create

    answers = os.environ.get("STANDIN_ANSWERS")
    seed = int(os.environ.get("STANDIN_SEED", "0"))
    given_run = os.environ.get("STANDIN_RUN", "0")
    number = random.getrandbits(32) if given_run == "new" else int(given_run)
    skilled = os.environ.get("STANDIN_SKILLS") == "1"
    varied = os.environ.get("STANDIN_VARIED") == "1"
    drawn = f"{number}:{os.environ.get('CUDA_VISIBLE_DEVICES')}" if varied else number
    brain = Model(
        Path(answers) if answers else None, seed=seed, run=drawn, skilled=skilled, varied=varied
    )
    app = create(config, brain, trouble, flavour)
    if loading is not None:
        loading.before(app)
    meanwhile = None
    ranks = _mpi_ranks(config.args)
    if config.cluster and config.role:
        from tests.standin.discovery import registered

        port = listener.getsockname()[1]
        meanwhile = registered(
            config.cluster, config.role, config.host, port, heartbeats=not trouble.silent_discovery
        )
    running = serve(
        app,
        listener,
        keepalive_s=5.0,
        meanwhile=meanwhile if ranks is None else ranks.until_the_end_of(meanwhile),
        early=flavour != "main",
        hangs=trouble.ignore_sigterm,
        report=config.report_addr,
        loading=loading,
    )
    try:
        asyncio.run(running)
    except Ended as end:
        sys.exit(end.code)


def _hang(trouble: Any) -> None:
    """Keep the process alive after the main thread has ended."""
    from tests.standin.serving import note

    if trouble.ignore_sigterm and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("says its last words")
    sys.stderr.write(f"{trouble.last_words}\n")
    while True:
        time.sleep(0 if trouble.spin_at_start else 60)


def _mpi_ranks(args: dict[str, Any]) -> Any:
    """Return the MPI ranks once all run, or None without STANDIN_MPI.

    Never returns if MPI starts no ranks.
    """
    if os.environ.get("STANDIN_MPI") != "1":
        return None
    from tests.standin.ranks import Ranks

    sizes = [args.get(f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "context")]
    return Ranks(sizes[0] * sizes[1] * sizes[2])


def _rank() -> int:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);"
        " time.sleep(120)"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE
    )
    assert rank.stdout is not None
    rank.stdout.readline()
    return rank.pid


def _orchestrator(params: dict[str, Any], flavour: Flavour) -> None:
    import yaml

    from tests.standin.config import orchestrator
    from tests.standin.serving import Ended, bind, serve

    path = params["config_file"]
    config = orchestrator(yaml.safe_load(Path(path).read_text()) or {}, flavour)
    if style := params.get("schedule_style"):
        config = replace(config, schedule_style=style)
    if config.num_workers > 1:
        raise NotImplementedError("the stand-in has no fleets of orchestrators")
    listener = bind(config.hostname, config.port, flavour)  # type: ignore[arg-type]
    trouble = _faults("disaggregated", None, config.port, path)
    default = "3" if flavour == "main" else "0"
    code = int(os.environ.get("STANDIN_START_TIMEOUT_RC", default))
    from tests.standin.orchestrator import Orchestrating

    server = Orchestrating(config, trouble, flavour, params["request_timeout"])

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


if __name__ == "__main__":
    main()
