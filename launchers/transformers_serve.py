"""A model in the layout of the hub served by `transformers serve`, of Hugging Face's transformers from 5.0 on."""

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

NAME = "transformers_serve"
MEANINGS = _meanings.TRANSFORMERS


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The command line that `launch` would start with these options, with the environment that it sets."""
    return [_server(context, with_defaults(launch, options)).line()]


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    model: str | None = None,
    command: str | list[str] = "transformers",
    device: str | None = None,
    dtype: str | None = None,
    continuous_batching: bool = False,
    threads: int | None = None,
    gpus: list[int | str] | Literal["auto"] | None = None,
    env: dict[str, str | None] = {},  # noqa: B006 - shown in lists of options, and never changed
    pass_env: list[str] = [],  # noqa: B006
    extra_args: list[str] = [],  # noqa: B006
    host: str = "127.0.0.1",
    port: int | None = None,
    ready_timeout_s: float = 1800.0,
    answer_timeout_s: float = 600.0,
    stop_timeout_s: float = 10.0,
) -> AsyncIterator[Endpoint]:
    """Starts the server, waits until it answers a completion, and yields its endpoint.

    `model` is a folder, or a name of the hub, whose files it may then download (None: the plan's model). It answers to
    that name alone, so that it is the one that is asked for. `command` is what stands before `serve`. `device` (cpu,
    cuda, ...) and `dtype` None: the server's own. `continuous_batching`: else it answers one request after the other.
    `threads` sets OMP_NUM_THREADS (None: as inherited).

    Raises PlanError for options that contradict each other, LaunchError when the server does not start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    build = partial(_server, context)
    async with other_engine.launched(build, context, options, launcher=NAME, model=_model(context, model)) as endpoint:
        yield endpoint


def _server(context: LaunchContext, options: Mapping[str, Any], ports: Sequence[int] | None = None) -> Server:
    where, threads = other_engine.place(options, ports), options["threads"]
    if threads is not None and threads < 1:
        raise PlanError(f"launcher.threads: {threads} is less than 1")
    command = [*words(options["command"]), "serve", _model(context, options["model"])]
    flags: dict[str, object] = {
        "--host": where.host,
        "--port": where.port,
        "--device": options["device"],
        "--dtype": options["dtype"],
        "--continuous-batching": options["continuous_batching"],
    }
    env = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return other_engine.server(NAME, command, flags, options, where, env=env)


def _model(context: LaunchContext, model: str | None) -> str:
    """A folder by its whole path, else the name as it is."""
    found = other_engine.loaded(context, model, "a folder, or a model of the hub")
    folder = Path(found).expanduser()
    return str(folder.absolute()) if folder.is_dir() else found
