"""Context and generation servers with an orchestrator on GPUs of this machine, for the run.

Every server is a trtllm-serve of its own. The deprecated MPI-worker mode (`disaggregated_mpi_worker`) is not built.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from launchers import _disaggregated, _environment, _gpus, _trtllm_command
from launchers._flavour import adapted_to_machine
from launchers._fleet import fleet, free_ports
from launchers._readiness import ready
from launchers._trtllm_command import Server
from serve_eval.errors import PlanError
from serve_eval.schema import Endpoint, LaunchContext

FIRST_PORT = 8000
"""What a dry run shows for the orchestrator where a launch takes a free port; its servers follow."""
REQUEST_S = 7200
"""The least time that the orchestrator gives a request; its own default of 180 s cuts long answers."""
START_MARGIN_S = 60
"""By how much longer than we the orchestrator waits for its servers, so that it is us who tell which one is late."""
LOOPBACK = "127.0.0.1"


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The servers of one kind. `env` comes on top of that of all; `router` is a type or a mapping with one."""

    num_instances: int = 1
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    config: str | dict[str, Any] | None = None
    extra_args: list[str] = []
    env: dict[str, str | None] = {}
    router: str | dict[str, Any] | None = None


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The command lines that `launch` would start with these options, each with the environment that it sets."""
    return [server.line() for server in _servers(context, **_trtllm_command.with_defaults(launch, options))]


def files(context: LaunchContext, **options: object) -> Mapping[Path, str]:
    """The config files that `launch` would write, by path."""
    servers = _servers(context, **_trtllm_command.with_defaults(launch, options))
    return {path: text for server in servers for path, text in server.files.items()}


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    model: str | None = None,
    context_servers: Side = Side(),  # noqa: B008 - frozen
    generation_servers: Side = Side(),  # noqa: B008
    backend: str | None = None,
    cache_transceiver: dict[str, Any] = {"backend": "DEFAULT"},  # noqa: B006 - shown in lists of options, never changed
    discovery: bool = False,
    orchestrator: dict[str, Any] = {},  # noqa: B006
    gpus: list[int | str] | None = None,
    env: dict[str, str | None] = {},  # noqa: B006
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
    both sides, unless both configs have the same. `discovery`: the servers register with the orchestrator instead of
    being listed in its file, to which `orchestrator` adds further keys. `host` and `port` are the orchestrator's; the
    servers bind loopback. `request_timeout_s` is the orchestrator's limit per request (None: twice what the client
    waits for a sample, at least 7200 s). The others are those of the launcher `trtllm`.

    Raises PlanError for options that contradict each other or GPUs that are too few, LaunchError when a server does not
    start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    _servers(context, **options)  # what is wrong is told before anything is looked for
    count = context_servers.num_instances + generation_servers.num_instances
    front_port = [port] if port is not None else free_ports(host, 1)
    servers = _servers(context, **options, ports=[*front_port, *free_ports(LOOPBACK, count)])
    servers = await adapted_to_machine(servers)
    front, named = servers[-1], str(model or context.model)
    async with fleet(servers, log_dir=context.log_dir, told=context.told, stop_timeout_s=stop_timeout_s) as running:
        await ready(
            running,
            front=front,
            model=context.model or named,
            timeout_s=ready_timeout_s,
            answer_timeout_s=answer_timeout_s,
            told=context.told,
            cluster=discovery,
        )
        info = {
            "launcher": "trtllm_disaggregated",
            "commands": [server.line() for server in servers],
            "log_dir": str(context.log_dir),
        }
        yield Endpoint(base_url=f"{front.reached_at()}/v1", model=context.model or named, info=info)


def _servers(
    context: LaunchContext,
    *,
    model: str | None,
    context_servers: Side,
    generation_servers: Side,
    backend: str | None,
    cache_transceiver: dict[str, Any],
    discovery: bool,
    orchestrator: dict[str, Any],
    gpus: list[int | str] | None,
    env: dict[str, str | None],
    command: str | list[str],
    host: str,
    port: int | None,
    ready_timeout_s: float,
    request_timeout_s: int | None,
    ports: list[int] | None = None,
    **_: object,
) -> list[Server]:
    """Context servers, generation servers, orchestrator."""
    served = model or context.model
    if served is None:
        raise PlanError("launcher.model: required: a name of the hub or a folder with a checkpoint")
    sides = {"context_servers": context_servers, "generation_servers": generation_servers}
    _environment.check(env, "launcher.env")
    for name, side in sides.items():
        _environment.check(side.env, f"launcher.{name}.env")
        if side.num_instances < 1:
            raise PlanError(f"launcher.{name}.num_instances: must be 1 or more")
    read = [_trtllm_command.read_config(side.config, f"launcher.{name}.config") for name, side in sides.items()]
    contents = _disaggregated.agreed(read[0], read[1], cache_transceiver)
    words = _trtllm_command.words(command)
    widths, given = [], {}
    for (name, side), content in zip(sides.items(), contents, strict=True):
        given[name] = {"tp": side.tp, "pp": side.pp, "cp": side.cp, "ep": side.ep, "backend": backend}
        width = _trtllm_command.width(
            _trtllm_command.once(given[name], content, f"launcher.{name}"), f"launcher.{name}"
        )
        widths += [(f"{name.removesuffix('_servers')}_{i}", width) for i in range(side.num_instances)]
    first = FIRST_PORT if port is None else port
    front_port, *worker_ports = ports or range(first, first + len(widths) + 1)
    section = None
    if discovery:
        counts = [side.num_instances for side in sides.values()]
        section = _disaggregated.cluster(_trtllm_command.loopback(host), front_port, *counts)
    blocks = iter(zip(widths, _gpus.blocks(widths, gpus, os.environ), worker_ports, strict=True))
    found: list[Server] = []
    for (kind, side), content in zip(sides.items(), contents, strict=True):
        file = context.log_dir / f"{kind}.yaml"
        text = _trtllm_command.to_yaml(content if section is None else {**content, "disagg_cluster": section})
        for _number in range(side.num_instances):
            (name, _width), block, worker_port = next(blocks)
            argv = _trtllm_command.serve(
                words,
                served,
                host=LOOPBACK,
                port=worker_port,
                options=given[kind],
                config=content,
                config_file=file,
                role=kind.removesuffix("_servers") if discovery else None,
                extra_args=side.extra_args,
                where=f"launcher.{kind}",
            )
            found.append(
                Server(
                    name=name,
                    argv=argv,
                    probe=(*words, "serve"),
                    host=LOOPBACK,
                    port=worker_port,
                    gpus=block,
                    env={"CUDA_VISIBLE_DEVICES": ",".join(block), **_ucx(content), **env, **side.env},
                    files={file: text},
                )
            )
    addresses = {
        kind: [f"{s.host}:{s.port}" for s in found if s.name.startswith(kind.removesuffix("_servers"))]
        for kind in sides
    }
    routers = {kind: side.router for kind, side in sides.items()}
    content = _disaggregated.orchestrator(host, front_port, addresses, routers, section, orchestrator)
    file = context.log_dir / "orchestrator.yaml"
    limit = request_timeout_s or max(REQUEST_S, math.ceil(2 * context.patience_s))
    if limit <= context.patience_s:
        raise PlanError(
            f"launcher.request_timeout_s: the orchestrator would give up after {limit} s, before the client, which "
            f"waits for {context.patience_s:g} s",
            hint="Leave it out, or make it longer than limits.sample_timeout_s.",
        )
    start_limit = math.ceil(ready_timeout_s) + START_MARGIN_S
    front = Server(
        name="orchestrator",
        argv=(*words, "disaggregated", "-c", str(file), "-t", str(start_limit), "-r", str(limit)),
        probe=(*words, "disaggregated"),
        host=host,
        port=front_port,
        env={"TRTLLM_DISAGG_NO_RETRY": "1", **env},
        files={file: _trtllm_command.to_yaml(content)},
    )
    return [*found, front]


def _ucx(content: Mapping[str, Any]) -> dict[str, str]:
    """What makes the transfer work on one machine, as NVIDIA's own tests have it."""
    backend = str(content[_disaggregated.TRANSCEIVER]["backend"]).upper()
    return {"UCX_TLS": "^ib", **({"UCX_MM_ERROR_HANDLING": "y"} if backend in ("DEFAULT", "NIXL") else {})}
