"""Serve a model with vLLM on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from serve_eval.launchers._fleet import session
from serve_eval.launchers._options import EngineOptions, Model, ReadyTimeout
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._vllm import deployment
from serve_eval.launchers._vllm.deployment import COMMAND, Command, VllmServerOptions
from serve_eval.schema import Endpoint, JobSize, LaunchContext

NAME = "vllm"


@dataclass(frozen=True, kw_only=True)
class VllmOptions(VllmServerOptions, EngineOptions):
    """Choose the model and how it is computed.

    Files of a `model` of the hub may be downloaded. `gpus` must name at least `tp`.
    """

    model: Model = None
    command: Command = COMMAND
    ready_timeout_s: ReadyTimeout = 1800.0


def commands(context: LaunchContext, options: VllmOptions) -> list[list[str]]:
    """Return the command line, with its environment, that `launch` would start."""
    return [_server(context, options).line()]


def job_size(context: LaunchContext, options: VllmOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for the server.

    Raises PlanError as `commands` does.
    """
    width = options.tp or 1
    _server(context, replace(options, gpus=session.gpus_of_a_job(options, width)))
    return session.job_size(options, width)


def expects(context: LaunchContext, options: VllmOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployment.list_expected(options)


@asynccontextmanager
async def launch(context: LaunchContext, options: VllmOptions) -> AsyncIterator[Endpoint]:
    """Start the server, wait until it answers a completion, and yield its endpoint.

    Raises PlanError if options contradict each other, LaunchError if the server does not start or
    ends.
    """
    name = deployment.choose_name(context, session.find_model(context, options.model))
    build = partial(_server, context)
    async with session.launch_engine(
        build, context, options, launcher=NAME, model=name
    ) as endpoint:
        yield endpoint


def _server(
    context: LaunchContext, options: VllmOptions, ports: Sequence[int] | None = None
) -> Server:
    flags = deployment.build_flags(options, "launcher")
    where = session.place(options, ports, width=options.tp or 1)
    model = session.find_model(context, options.model)
    command, ours = deployment.begin(options.command, model, context, where.host, where.port)
    flags = {**ours, **flags}
    deployment.check_extra(options.extra_args, {"--model": None, **flags}, "launcher")
    return session.server(NAME, command, flags, options, where, env=deployment.ENV)
