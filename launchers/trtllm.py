"""One trtllm-serve on GPUs of this machine, started for the run and stopped after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from launchers import _meanings
from launchers._fleet import free_gpus, places
from launchers._fleet.fleet import free_ports
from launchers._fleet.session import session
from launchers._trtllm import command_line, deployments
from launchers._trtllm.command_line import Server
from launchers._trtllm.deployments import Aggregated
from launchers._trtllm.flavour import shown
from launchers._trtllm.parts import list_parts
from launchers._trtllm.servers import build_servers
from serve_eval.schema import Endpoint, LaunchContext

MEANINGS = _meanings.TRTLLM


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The command line that `launch` would start with these options, with the environment that it sets."""
    return [one.line() for one in shown(_servers(context, command_line.with_defaults(launch, options)))]


def files(context: LaunchContext, **options: object) -> Mapping[Path, str]:
    """The config files that `launch` would write, by path."""
    [server] = _servers(context, command_line.with_defaults(launch, options))
    return server.files


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    model: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
    backend: str | None = None,
    config: str | dict[str, Any] | None = None,
    gpus: list[int | str] | Literal["auto"] | None = None,
    env: dict[str, str | None] = {},  # noqa: B006 - shown in lists of options, and never changed
    pass_env: list[str] = [],  # noqa: B006
    extra_args: list[str] = [],  # noqa: B006
    command: str | list[str] = "trtllm-serve",
    host: str = "127.0.0.1",
    port: int | None = None,
    ready_timeout_s: float = 3600.0,
    answer_timeout_s: float = 600.0,
    stop_timeout_s: float = 30.0,
) -> AsyncIterator[Endpoint]:
    """Starts the server, waits until it answers a completion, and yields its endpoint.

    `model` is what is loaded (None: the plan's model), `config` a YAML file of LlmArgs or its content. `gpus` are taken
    from CUDA_VISIBLE_DEVICES or counted from 0 where none are named; auto takes free ones. `env` is set, or removed
    where null; `pass_env` names what is inherited besides. `command` is the executable, or what stands before `serve`.
    `port` None: a free one. `ready_timeout_s` bounds the loading, `answer_timeout_s` the first completion,
    `stop_timeout_s` the time between SIGTERM and SIGKILL, all in seconds.

    Raises PlanError for options that contradict each other, LaunchError when the server does not start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    shown = _servers(context, options)  # what is wrong is told before anything is looked for
    async with (
        free_gpus.reserved(gpus, shown, context.told) as reserved,
        session(
            _servers(context, {**options, "gpus": reserved.gpus}, free_ports(host, port)),
            context,
            launcher="trtllm",
            model=context.model or str(model),
            ready_timeout_s=ready_timeout_s,
            answer_timeout_s=answer_timeout_s,
            stop_timeout_s=stop_timeout_s,
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def _servers(context: LaunchContext, options: Mapping[str, Any], ports: list[int] | None = None) -> list[Server]:
    deployment: Aggregated = deployments.picked(Aggregated, options)
    placed = places.placed(
        list_parts(deployment, context),
        gpus=options["gpus"],
        host=options["host"],
        port=options["port"],
        ports=ports,
    )
    [server] = build_servers(deployment, context, placed, ready_timeout_s=options["ready_timeout_s"])
    # A port that nobody chose, the server may as well find itself, so that no one can take it in between.
    report = context.log_dir / f"{server.name}.address" if options["port"] is None else None
    return [replace(server, report=report)]
