"""Serve a model with `transformers serve` of Hugging Face transformers 5.0 or newer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from serve_eval.errors import PlanError
from serve_eval.launchers._fleet import session
from serve_eval.launchers._options import EngineOptions, Model, ReadyTimeout
from serve_eval.launchers._trtllm.command_line import Server, words
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, JobSize, LaunchContext

NAME = "transformers_serve"


@dataclass(frozen=True, kw_only=True)
class TransformersOptions(EngineOptions):
    """Choose the model and how it is computed.

    Files of a `model` of the hub may be downloaded. The server answers only to that name, so
    requests use it.
    """

    model: Model = None
    command: Annotated[str | list[str], Setting("Executable, or all words before serve.")] = (
        "transformers"
    )
    device: Annotated[
        str | None,
        Setting("Value of --device, such as cpu or cuda. Not set: the server's default."),
    ] = None
    dtype: Annotated[
        str | None, Setting("Value of --dtype, such as bfloat16. Not set: the server's default.")
    ] = None
    continuous_batching: Annotated[
        bool, Setting("Process requests together instead of one after the other.")
    ] = False
    threads: Annotated[int | None, Setting("Value of OMP_NUM_THREADS. Not set: as inherited.")] = (
        None
    )
    ready_timeout_s: ReadyTimeout = 1800.0


def commands(context: LaunchContext, options: TransformersOptions) -> list[list[str]]:
    """Return the command line, with its environment, that `launch` would start."""
    return [_server(context, options).line()]


def job_size(context: LaunchContext, options: TransformersOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for the server.

    Raises PlanError as `commands` does.
    """
    _server(context, replace(options, gpus=session.gpus_of_a_job(options)))
    return session.job_size(options)


@asynccontextmanager
async def launch(context: LaunchContext, options: TransformersOptions) -> AsyncIterator[Endpoint]:
    """Start the server, wait until it answers a completion, and yield its endpoint.

    Raises PlanError if options contradict each other, LaunchError if the server does not start or
    ends.
    """
    build = partial(_server, context)
    name = session.find_model(context, options.model)
    async with session.launch_engine(
        build, context, options, launcher=NAME, model=name
    ) as endpoint:
        yield endpoint


def _server(
    context: LaunchContext, options: TransformersOptions, ports: Sequence[int] | None = None
) -> Server:
    where, threads = session.place(options, ports), options.threads
    if threads is not None and threads < 1:
        raise PlanError(f"launcher.threads: {threads} is less than 1")
    command = [*words(options.command), "serve", session.find_model(context, options.model)]
    flags: dict[str, object] = {
        "--host": where.host,
        "--port": where.port,
        "--device": options.device,
        "--dtype": options.dtype,
        "--continuous-batching": options.continuous_batching,
    }
    env = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return session.server(NAME, command, flags, options, where, env=env)
