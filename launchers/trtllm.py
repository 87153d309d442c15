"""One trtllm-serve on GPUs of this machine, started for the run and stopped after it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from launchers import _environment, _gpus, _trtllm_command
from launchers._flavour import adapted_to_machine
from launchers._fleet import fleet, free_ports
from launchers._readiness import ready
from launchers._trtllm_command import Server
from serve_eval.errors import PlanError
from serve_eval.schema import Endpoint, LaunchContext

FIRST_PORT = 8000
"""What a dry run shows where a launch takes a free port."""


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The command line that `launch` would start with these options, with the environment that it sets."""
    return [_server(context, **_trtllm_command.with_defaults(launch, options)).line()]


def files(context: LaunchContext, **options: object) -> Mapping[Path, str]:
    """The config files that `launch` would write, by path."""
    return _server(context, **_trtllm_command.with_defaults(launch, options)).files


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
    gpus: list[int | str] | None = None,
    env: dict[str, str | None] = {},  # noqa: B006 - shown in lists of options, and never changed
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
    from CUDA_VISIBLE_DEVICES or counted from 0 where none are named. `env` is set, or removed where null. `command` is
    the executable, or what stands before `serve`. `port` None: a free one. `ready_timeout_s` bounds the loading,
    `answer_timeout_s` the first completion, `stop_timeout_s` the time between SIGTERM and SIGKILL, all in seconds.

    Raises PlanError for options that contradict each other, LaunchError when the server does not start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    _server(context, **options)  # what is wrong is told before anything is looked for
    if port is None:
        [options["port"]] = free_ports(host, 1)
    [server] = await adapted_to_machine([_server(context, **options)])
    named = str(model or context.model)
    async with fleet([server], log_dir=context.log_dir, told=context.told, stop_timeout_s=stop_timeout_s) as running:
        await ready(
            running,
            front=server,
            model=context.model or named,
            timeout_s=ready_timeout_s,
            answer_timeout_s=answer_timeout_s,
            told=context.told,
        )
        info = {"launcher": "trtllm", "commands": [server.line()], "log_dir": str(context.log_dir)}
        yield Endpoint(base_url=f"{server.reached_at()}/v1", model=context.model or named, info=info)


def _server(
    context: LaunchContext,
    *,
    model: str | None,
    tp: int | None,
    pp: int | None,
    cp: int | None,
    ep: int | None,
    backend: str | None,
    config: str | dict[str, Any] | None,
    gpus: list[int | str] | None,
    env: dict[str, str | None],
    extra_args: list[str],
    command: str | list[str],
    host: str,
    port: int | None,
    **_: object,
) -> Server:
    served = model or context.model
    if served is None:
        raise PlanError("launcher.model: required: a name of the hub or a folder with a checkpoint")
    _environment.check(env, "launcher.env")
    content = _trtllm_command.read_config(config, "launcher.config")
    given = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "backend": backend}
    known = _trtllm_command.once(given, content, "launcher")
    [block] = _gpus.blocks([("trtllm", _trtllm_command.width(known, "launcher"))], gpus, os.environ)
    written, file = {}, None
    if isinstance(config, str):
        file = Path(config).expanduser().absolute()
    elif content:
        file = context.log_dir / "trtllm.yaml"
        written[file] = _trtllm_command.to_yaml(content)
    port = FIRST_PORT if port is None else port
    words = _trtllm_command.words(command)
    argv = _trtllm_command.serve(
        words,
        served,
        host=host,
        port=port,
        options=given,
        config=content,
        config_file=file,
        extra_args=extra_args,
    )
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(block), **env}
    return Server(
        name="trtllm",
        argv=argv,
        probe=(*words, "serve"),
        host=host,
        port=port,
        gpus=block,
        env=variables,
        files=written,
    )
