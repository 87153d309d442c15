"""One server of another engine than TensorRT-LLM on this machine: what its launchers share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from launchers._fleet import free_gpus, places
from launchers._fleet.fleet import free_ports
from launchers._fleet.session import serve_commands
from launchers._machine import hosts, local_gpus
from launchers._options import EngineOptions
from launchers._process import environment
from launchers._trtllm.command_line import Place, Server
from serve_eval.errors import PlanError
from serve_eval.schema import Endpoint, LaunchContext

Options = TypeVar("Options", bound=EngineOptions)
MODEL_HINT = "Set launcher.model, or name the model by --model."


@asynccontextmanager
async def launch_engine(
    build: Callable[[Options, Sequence[int] | None], Server],
    context: LaunchContext,
    options: Options,
    *,
    launcher: str,
    model: str,
) -> AsyncIterator[Endpoint]:
    """Runs the server that `build` makes of options and ports, for the length of the block.
    `options` are those of the launcher, `model` is the name that is asked for. Raises PlanError
    before anything is looked for, LaunchError.
    """
    shown = build(options, None)
    async with (
        free_gpus.reserve(options.gpus, [shown], context.notify) as reserved,
        serve_commands(
            [build(replace(options, gpus=reserved.gpus), free_ports(options.host, options.port))],
            context,
            launcher=launcher,
            model=model,
            limits=options,
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def choose_model(context: LaunchContext, model: str | None, what: str) -> str:
    """What is loaded: `model`, else what the plan names. Raises PlanError when there is neither."""
    if (found := model or context.model) is None:
        raise PlanError(f"launcher.model: name {what}", hint=MODEL_HINT)
    return found


def place(options: EngineOptions, ports: Sequence[int] | None = None) -> Place:
    """Where it listens, and on which GPUs it runs: on none of its own where none are named, and on
    one for auto. `ports` are those that a launch takes (None: such as a dry run shows). Raises
    PlanError.
    """
    port = places.check_shown_port(options.port)
    named = options.gpus or []
    count, environ = (1, os.environ) if named == local_gpus.AUTO else (len(named), {})
    [gpus] = local_gpus.blocks([("the server", count)], named, environ)
    return Place(host=hosts.check(options.host), port=ports[0] if ports else port, gpus=gpus)


def server(
    name: str,
    command: Sequence[str],
    flags: Mapping[str, object],
    options: EngineOptions,
    where: Place,
    *,
    env: Mapping[str, str] | None = None,
    health: str = "/health",
) -> Server:
    """The server with its command line: `command`, then the flags that are not None, then
    `extra_args`.

    `env` stands below the variables of the options. Raises PlanError for a secret, and for an extra
    argument that is a flag of the launcher's.
    """
    extra = options.extra_args
    environment.check(options.env, "launcher.env")
    environment.check_names(options.pass_env, "launcher.pass_env")
    environment.check_words([*command, *extra], "launcher.command or launcher.extra_args")
    for word in extra:
        if (flag := word.partition("=")[0]) in flags:
            raise PlanError(
                f"launcher.extra_args: {flag} is set by the launcher: give the option that sets it"
            )
    argv = list(command)
    for flag, value in flags.items():
        argv += (
            []
            if value is None or value is False
            else [flag]
            if value is True
            else [flag, str(value)]
        )
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(where.gpus)} if where.gpus else {}
    return Server(
        name=name,
        argv=(*argv, *extra),
        probe=(),
        place=where,
        env={**visible, **(env or {}), **options.env},
        pass_env=tuple(options.pass_env),
        health=health,
    )
