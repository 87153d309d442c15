"""Context and generation servers with an orchestrator on GPUs of this machine, for the run.

Every server is a trtllm-serve of its own. The deprecated MPI-worker mode (`disaggregated_mpi_worker`) is not built.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from launchers import _meanings
from launchers._fleet import free_gpus, places
from launchers._fleet.fleet import free_ports
from launchers._fleet.places import LOOPBACK
from launchers._fleet.session import session
from launchers._trtllm import command_line, deployments, kv_transfer
from launchers._trtllm.command_line import Server
from launchers._trtllm.deployments import Disaggregated, ServerSide
from launchers._trtllm.flavour import shown
from launchers._trtllm.kv_transfer import BACKEND, Ways
from launchers._trtllm.parts import list_parts, summarise_transfer
from launchers._trtllm.servers import build_servers
from serve_eval.schema import Endpoint, LaunchContext

MEANINGS = _meanings.DISAGGREGATED


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The command lines that `launch` would start with these options, each with the environment that it sets."""
    return [one.line() for one in shown(_servers(context, command_line.with_defaults(launch, options)))]


def files(context: LaunchContext, **options: object) -> Mapping[Path, str]:
    """The config files that `launch` would write, by path."""
    servers = shown(_servers(context, command_line.with_defaults(launch, options)))
    return {path: text for server in servers for path, text in server.files.items()}


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    model: str | None = None,
    context_servers: ServerSide = ServerSide(),  # noqa: B008 - frozen
    generation_servers: ServerSide = ServerSide(),  # noqa: B008
    backend: str | None = None,
    cache_transceiver: dict[str, Any] = {"backend": BACKEND},  # noqa: B006 - shown in lists of options, never changed
    discovery: bool | str = False,
    auth_key: bool | None = None,
    orchestrator: dict[str, Any] = {},  # noqa: B006
    perf_metrics: bool = False,
    gpus: list[int | str] | Literal["auto"] | None = None,
    env: dict[str, str | None] = {},  # noqa: B006
    pass_env: list[str] = [],  # noqa: B006
    command: str | list[str] = "trtllm-serve",
    host: str = LOOPBACK,
    port: int | None = None,
    ready_timeout_s: float = 3600.0,
    answer_timeout_s: float = 600.0,
    request_timeout_s: int | None = None,
    stop_timeout_s: float = 30.0,
) -> AsyncIterator[Endpoint]:
    """Starts all servers at once, waits for a completion through the orchestrator, and yields its endpoint.

    GPUs are given in disjoint blocks, context servers first. `cache_transceiver` is the cache_transceiver_config of
    both sides, unless both configs have the same. `discovery`: the servers register with the orchestrator, or in an
    etcd (etcd://HOST:PORT), instead of being listed in its file, to which `orchestrator` adds further keys. `auth_key`:
    they share a key that is drawn for the launch (None: where their version has one). `perf_metrics`: it is kept which
    servers had which request, in some versions with its prompt, so that a run can say which one answers wrong. `host`
    and `port` are the orchestrator's; the servers bind loopback. `request_timeout_s` is the orchestrator's limit per
    request (None: twice what the client waits for a sample, at least 7200 s). The others are those of the launcher
    `trtllm`.

    Raises PlanError for options that contradict each other or GPUs that are too few, LaunchError when a server does not
    start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    planned = _servers(context, options)  # what is wrong is told before anything is looked for
    count = context_servers.num_instances + generation_servers.num_instances
    ways = replace(_ways(options), nvlink=await asyncio.to_thread(kv_transfer.nvlink))
    ports, tag = free_ports(host, port, count), uuid.uuid4().hex[:12]
    async with (
        free_gpus.reserved(gpus, planned, context.told) as reserved,
        session(
            _servers(context, {**options, "gpus": reserved.gpus}, ports, ways=ways, tag=tag),
            context,
            launcher="trtllm_disaggregated",
            model=context.model or str(model),
            ready_timeout_s=ready_timeout_s,
            answer_timeout_s=answer_timeout_s,
            stop_timeout_s=stop_timeout_s,
            cluster=bool(discovery),
            transfer=summarise_transfer(deployments.picked(Disaggregated, options), context, ways),
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def _ways(options: Mapping[str, Any]) -> Ways:
    return Ways(own=kv_transfer.inherited(options["pass_env"]))


def _servers(
    context: LaunchContext,
    options: Mapping[str, Any],
    ports: list[int] | None = None,
    ways: Ways | None = None,
    tag: str | None = None,
) -> list[Server]:
    """Context servers, generation servers, orchestrator."""
    deployment: Disaggregated = deployments.picked(Disaggregated, options)
    placed = places.placed(
        list_parts(deployment, context),
        gpus=options["gpus"],
        host=options["host"],
        port=options["port"],
        ports=ports,
    )
    limit = options["ready_timeout_s"]
    return build_servers(deployment, context, placed, ready_timeout_s=limit, ways=ways or _ways(options), tag=tag)
