"""The servers of `trtllm` or `trtllm_disaggregated` in containers of an image, by docker or podman on this machine."""

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
from launchers._trtllm import command_line, containers, deployments, kv_transfer
from launchers._trtllm.command_line import Server
from launchers._trtllm.containers import ULIMITS, Container, Engine
from launchers._trtllm.deployments import Aggregated, Disaggregated
from launchers._trtllm.flavour import shown
from launchers._trtllm.kv_transfer import Ways
from launchers._trtllm.parts import list_parts, summarise_transfer
from launchers._trtllm.servers import build_servers
from serve_eval.schema import Endpoint, LaunchContext

MEANINGS = _meanings.CONTAINER


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The run lines that `launch` would start with these options, but for the unique part of the containers' names."""
    return [one.line() for one in shown(_servers(context, command_line.with_defaults(launch, options)))]


def files(context: LaunchContext, **options: object) -> Mapping[Path, str]:
    """The config files that `launch` would write, by path."""
    servers = shown(_servers(context, command_line.with_defaults(launch, options)))
    return {path: text for server in servers for path, text in server.files.items()}


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    image: str,
    engine: Engine = "docker",
    trtllm: Aggregated | None = None,
    trtllm_disaggregated: Disaggregated | None = None,
    mounts: list[str] = [],  # noqa: B006 - shown in lists of options, and never changed
    mount_paths: bool = True,
    network: str = containers.HOST,
    ipc: str | None = containers.HOST,
    shm_size: str | None = None,
    ulimits: dict[str, int | str] = ULIMITS,
    user: str | None = None,
    pass_env: list[str] = ["HF_TOKEN"],  # noqa: B006
    run_args: list[str] = [],  # noqa: B006
    gpus: list[int | str] | Literal["auto"] | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    ready_timeout_s: float = 3600.0,
    answer_timeout_s: float = 600.0,
    stop_timeout_s: float = 30.0,
) -> AsyncIterator[Endpoint]:
    """Starts every server in a container of its own, waits for a completion, and yields the endpoint.

    What is served is `trtllm` or `trtllm_disaggregated`, with the options of those launchers that do not speak of the
    machine; one server without either. Where and for how long is said beside them, as there. `mounts` are
    SOURCE:TARGET[:OPTIONS]; config files and the run's logs, and with `mount_paths` full paths on the command lines,
    are mounted under their own path besides. `pass_env` names variables that go in without their value being seen.
    `run_args` are further options of `run`.

    Raises PlanError for options that contradict each other, LaunchError when a server does not start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    deployment = deployments.chosen(options)
    planned = _servers(context, options)  # what is wrong is told before anything is looked for
    ways = _ways(options)
    if len(planned) > 1:
        ways = replace(ways, nvlink=await asyncio.to_thread(kv_transfer.nvlink))
    ports = free_ports(host, port, len(planned) - 1)
    async with (
        free_gpus.reserved(gpus, planned, context.told) as reserved,
        session(
            _servers(context, {**options, "gpus": reserved.gpus}, ports, uuid.uuid4().hex[:12], ways),
            context,
            launcher="container",
            model=context.model or str(deployment.model),
            ready_timeout_s=ready_timeout_s,
            answer_timeout_s=answer_timeout_s,
            stop_timeout_s=stop_timeout_s,
            cluster=isinstance(deployment, Disaggregated) and bool(deployment.discovery),
            transfer=summarise_transfer(deployment, context, ways),
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def _ways(options: Mapping[str, Any]) -> Ways:
    """Into a container go those variables alone that are named."""
    named = {*options["pass_env"], *deployments.chosen(options).pass_env}
    return Ways(own=kv_transfer.inherited(named) & named)


def _servers(
    context: LaunchContext,
    options: Mapping[str, Any],
    ports: list[int] | None = None,
    launch: str = "",
    ways: Ways | None = None,
) -> list[Server]:
    deployment, container = deployments.chosen(options), deployments.picked(Container, options)
    containers.check(container, deployment, deployments.served(deployment, context))
    context = replace(context, log_dir=context.log_dir.absolute())  # mounted under its own path
    placed = places.placed(
        list_parts(deployment, context),
        gpus=options["gpus"],
        host=options["host"],
        port=options["port"],
        ports=ports,
    )
    limit = options["ready_timeout_s"]
    ways = ways or _ways(options)
    servers = build_servers(deployment, context, placed, ready_timeout_s=limit, ways=ways, tag=launch or None)
    return [containers.wrapped(server, container, launch) for server in servers]
