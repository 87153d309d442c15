"""Serve a GGUF file with llama.cpp's llama-server or the server of llama-cpp-python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._fleet import session
from serve_eval.launchers._options import EngineOptions, ReadyTimeout
from serve_eval.launchers._trtllm.command_line import Server, words
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, JobSize, LaunchContext

NAME = "llama_cpp"
COMMANDS = {"llama-server": "llama-server", "python": "python3 -m llama_cpp.server"}


@dataclass(frozen=True, kw_only=True)
class LlamaCppOptions(EngineOptions):
    """Choose the GGUF file, the server that serves it, and how the server computes.

    Each of the `parallel` requests has a context of `context_tokens`. The server of
    llama-cpp-python answers requests one after the other; with `prompt_logprobs`, it keeps the
    logits of the whole context in memory.
    """

    model: Annotated[str | None, Setting("Path of the GGUF file. Not set: the plan's model.")] = (
        None
    )
    server: Annotated[
        Literal["llama-server", "python"],
        Setting("The server: llama.cpp's llama-server, or the one of llama-cpp-python."),
    ] = "llama-server"
    command: Annotated[
        str | list[str] | None,
        Setting(
            "Executable, or all words before the flags. Not set: llama-server, or"
            " python3 -m llama_cpp.server."
        ),
    ] = None
    context_tokens: Annotated[
        int | None,
        Setting("Maximum tokens of a prompt and its answer. Not set: the model's context."),
    ] = None
    parallel: Annotated[
        int, Setting("Number of requests that llama-server processes together.")
    ] = 4
    threads: Annotated[
        int | None, Setting("Number of CPU threads. Not set: the server's default.")
    ] = None
    gpu_layers: Annotated[
        int | None, Setting("Number of layers on the GPU. Not set: the server's default.")
    ] = None
    prompt_logprobs: Annotated[
        bool,
        Setting("Return log-probabilities of prompts (llama-cpp-python only). Uses more memory."),
    ] = False
    ready_timeout_s: ReadyTimeout = 600.0


def commands(context: LaunchContext, options: LlamaCppOptions) -> list[list[str]]:
    """Return the command line, with its environment, that `launch` would start."""
    return [_server(context, options).line()]


def job_size(context: LaunchContext, options: LlamaCppOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for the server.

    Raises PlanError as `commands` does.
    """
    _server(context, replace(options, gpus=session.gpus_of_a_job(options)))
    return session.job_size(options)


@asynccontextmanager
async def launch(context: LaunchContext, options: LlamaCppOptions) -> AsyncIterator[Endpoint]:
    """Start the server, wait until it answers a completion, and yield its endpoint.

    Raises PlanError if options contradict each other, and LaunchError if the server does not start
    or ends before the block.
    """
    build = partial(_server, context)
    name = _name(context, options.model)
    async with session.launch_engine(
        build, context, options, launcher=NAME, model=name
    ) as endpoint:
        yield endpoint


def _server(
    context: LaunchContext, options: LlamaCppOptions, ports: Sequence[int] | None = None
) -> Server:
    tokens = options.context_tokens
    for name, value, least in (
        ("parallel", options.parallel, 1),
        ("context_tokens", tokens, 1),
        ("threads", options.threads, 1),
        ("gpu_layers", options.gpu_layers, 0),
    ):
        if value is not None and value < least:
            raise PlanError(f"launcher.{name}: {value} is less than {least}")
    where = session.place(options, ports)
    command = words(COMMANDS[options.server] if options.command is None else options.command)
    file = session.choose_model(context, options.model, "a GGUF file")
    shared: dict[str, object] = {
        "--model": str(Path(file).expanduser()),
        "--host": where.host,
        "--port": where.port,
    }
    if options.server == "python":
        flags: dict[str, object] = {
            **shared,
            "--model_alias": _name(context, file),
            "--n_ctx": tokens or 0,
            "--n_threads": options.threads,
            "--n_threads_batch": options.threads,
            "--n_gpu_layers": options.gpu_layers,
            # Without this, a new request ends the running streams.
            "--interrupt_requests": "false",
            "--logits_all": "true" if options.prompt_logprobs else None,
        }
        # Python 3.11 and newer then leave the current folder out of what `-m` imports from.
        env = {"PYTHONSAFEPATH": "1"} if options.command is None else {}
        return session.server(NAME, command, flags, options, where, health="/v1/models", env=env)
    if options.prompt_logprobs:
        raise PlanError(
            "launcher.prompt_logprobs: llama-server returns no log-probabilities of prompts",
            hint="Set launcher.server=python.",
        )
    flags = {
        **shared,
        "--alias": _name(context, file),
        "--parallel": options.parallel,
        # The requests share this context. Without the flag, they share the model's own context.
        "--ctx-size": tokens * options.parallel if tokens else None,
        "--threads": options.threads,
        "--n-gpu-layers": options.gpu_layers,
    }
    return session.server(NAME, command, flags, options, where)


def _name(context: LaunchContext, model: str | None) -> str:
    """Return the name under which the model is served."""
    return context.model or Path(str(model)).name
