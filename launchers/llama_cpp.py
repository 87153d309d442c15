"""A GGUF file served by llama.cpp: by its own llama-server, or by the server of
llama-cpp-python.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from launchers._fleet import other_engine
from launchers._options import EngineOptions, ReadyTimeout
from launchers._trtllm.command_line import Server, words
from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, LaunchContext

NAME = "llama_cpp"
COMMANDS = {"llama-server": "llama-server", "python": "python3 -m llama_cpp.server"}


@dataclass(frozen=True, kw_only=True)
class LlamaCppOptions(EngineOptions):
    """Choose the GGUF file, the server that serves it, and how it computes.

    `parallel` requests have a context of `context_tokens` each; the server of llama-cpp-python
    answers one after the other. For `prompt_logprobs` it keeps the logits of the whole context in
    memory.
    """

    model: Annotated[
        str | None, Setting("The GGUF file. Not set: the plan's model is its path.")
    ] = None
    server: Annotated[
        Literal["llama-server", "python"],
        Setting("llama.cpp's own llama-server, or the server of llama-cpp-python."),
    ] = "llama-server"
    command: Annotated[
        str | list[str] | None,
        Setting(
            "The executable, or all that stands before the flags. Not set: llama-server, or python3"
            " -m llama_cpp.server."
        ),
    ] = None
    context_tokens: Annotated[
        int | None,
        Setting("The longest prompt with its answer, in tokens. Not set: that of the model."),
    ] = None
    parallel: Annotated[int, Setting("How many requests llama-server works on together.")] = 4
    threads: Annotated[
        int | None, Setting("How many threads compute. Not set: the server's own.")
    ] = None
    gpu_layers: Annotated[
        int | None, Setting("How many layers lie on the GPU. Not set: the server's own.")
    ] = None
    prompt_logprobs: Annotated[
        bool,
        Setting(
            "The server of llama-cpp-python gives log-probabilities of prompts, which takes memory."
        ),
    ] = False
    ready_timeout_s: ReadyTimeout = 600.0


def commands(context: LaunchContext, options: LlamaCppOptions) -> list[list[str]]:
    """Return the command line that `launch` would start with these options, with the environment
    that it sets.
    """
    return [_server(context, options).line()]


@asynccontextmanager
async def launch(context: LaunchContext, options: LlamaCppOptions) -> AsyncIterator[Endpoint]:
    """Start the server, wait until it answers a completion, and yield its endpoint.

    Raises PlanError for options that contradict each other, LaunchError when the server does not
    start or ends.
    """
    build = partial(_server, context)
    name = _name(context, options.model)
    async with other_engine.launch_engine(
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
    where = other_engine.place(options, ports)
    command = words(COMMANDS[options.server] if options.command is None else options.command)
    file = other_engine.choose_model(context, options.model, "a GGUF file")
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
            # Else a new request ends the streams that are under way.
            "--interrupt_requests": "false",
            "--logits_all": "true" if options.prompt_logprobs else None,
        }
        return other_engine.server(NAME, command, flags, options, where, health="/v1/models")
    if options.prompt_logprobs:
        raise PlanError(
            "launcher.prompt_logprobs: llama-server gives none of prompts",
            hint="Set launcher.server=python.",
        )
    flags = {
        **shared,
        "--alias": _name(context, file),
        "--parallel": options.parallel,
        # It is shared among the requests; 0 is the model's own for all of them together.
        "--ctx-size": tokens * options.parallel if tokens else None,
        "--threads": options.threads,
        "--n-gpu-layers": options.gpu_layers,
    }
    return other_engine.server(NAME, command, flags, options, where)


def _name(context: LaunchContext, model: str | None) -> str:
    """The name under which it is served."""
    return context.model or Path(str(model)).name
