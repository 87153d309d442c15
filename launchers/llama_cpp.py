"""A GGUF file served by llama.cpp: by its own llama-server, or by the server of llama-cpp-python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from launchers import _meanings
from launchers._fleet import other_engine
from launchers._trtllm.command_line import Server, with_defaults, words
from serve_eval.errors import PlanError
from serve_eval.schema import Endpoint, LaunchContext

NAME = "llama_cpp"
COMMANDS = {"llama-server": "llama-server", "python": "python3 -m llama_cpp.server"}
MEANINGS = _meanings.LLAMA_CPP


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The command line that `launch` would start with these options, with the environment that it sets."""
    return [_server(context, with_defaults(launch, options)).line()]


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    model: str | None = None,
    server: Literal["llama-server", "python"] = "llama-server",
    command: str | list[str] | None = None,
    context_tokens: int | None = None,
    parallel: int = 4,
    threads: int | None = None,
    gpu_layers: int | None = None,
    prompt_logprobs: bool = False,
    gpus: list[int | str] | Literal["auto"] | None = None,
    env: dict[str, str | None] = {},  # noqa: B006 - shown in lists of options, and never changed
    pass_env: list[str] = [],  # noqa: B006
    extra_args: list[str] = [],  # noqa: B006
    host: str = "127.0.0.1",
    port: int | None = None,
    ready_timeout_s: float = 600.0,
    answer_timeout_s: float = 600.0,
    stop_timeout_s: float = 10.0,
) -> AsyncIterator[Endpoint]:
    """Starts the server, waits until it answers a completion, and yields its endpoint.

    `model` is the GGUF file (None: the plan's model is its path). `command` is the executable of llama-server, or what
    runs the server of llama-cpp-python. `context_tokens` is the longest prompt with its answer (None: that of the
    model); `parallel` the number of requests that llama-server works on together, each with such a context. The server
    of llama-cpp-python answers one after the other; `prompt_logprobs` lets it give log-probabilities of prompts, for
    which it keeps the logits of the whole context in memory. `threads` and `gpu_layers` None: the server's own.

    Raises PlanError for options that contradict each other, LaunchError when the server does not start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    build = partial(_server, context)
    async with other_engine.launched(build, context, options, launcher=NAME, model=_name(context, model)) as endpoint:
        yield endpoint


def _server(context: LaunchContext, options: Mapping[str, Any], ports: Sequence[int] | None = None) -> Server:
    kind, parallel, tokens = options["server"], options["parallel"], options["context_tokens"]
    for name, least in (("parallel", 1), ("context_tokens", 1), ("threads", 1), ("gpu_layers", 0)):
        if options[name] is not None and options[name] < least:
            raise PlanError(f"launcher.{name}: {options[name]} is less than {least}")
    where = other_engine.place(options, ports)
    command = words(COMMANDS[kind] if options["command"] is None else options["command"])
    file = other_engine.loaded(context, options["model"], "a GGUF file")
    shared: dict[str, object] = {"--model": str(Path(file).expanduser()), "--host": where.host, "--port": where.port}
    if kind == "python":
        flags: dict[str, object] = {
            **shared,
            "--model_alias": _name(context, file),
            "--n_ctx": tokens or 0,
            "--n_threads": options["threads"],
            "--n_threads_batch": options["threads"],
            "--n_gpu_layers": options["gpu_layers"],
            # Else a new request ends the streams that are under way.
            "--interrupt_requests": "false",
            "--logits_all": "true" if options["prompt_logprobs"] else None,
        }
        return other_engine.server(NAME, command, flags, options, where, health="/v1/models")
    if options["prompt_logprobs"]:
        raise PlanError(
            "launcher.prompt_logprobs: llama-server gives none of prompts", hint="Set launcher.server=python."
        )
    flags = {
        **shared,
        "--alias": _name(context, file),
        "--parallel": parallel,
        # It is shared among the requests; 0 is the model's own for all of them together.
        "--ctx-size": tokens * parallel if tokens else None,
        "--threads": options["threads"],
        "--n-gpu-layers": options["gpu_layers"],
    }
    return other_engine.server(NAME, command, flags, options, where)


def _name(context: LaunchContext, model: str | None) -> str:
    """The name under which it is served."""
    return context.model or Path(str(model)).name
