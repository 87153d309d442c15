"""The embedded model: a tiny real language model that ships with serve-eval, served by numpy on one
core of a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from launchers._embedded.damage import Damage
from launchers._process.own_server import check_installed, own_server
from serve_eval.errors import LaunchError
from serve_eval.plugins.setting import Setting
from serve_eval.protocol.special_tokens import beginning as beginning_of
from serve_eval.protocol.special_tokens import read
from serve_eval.schema import Endpoint, LaunchContext, ServerInfo

NAME = "embedded"
WEIGHTS = Path(__file__).with_name("_embedded") / "model"
"""The weights that ship, in the layout of the hub."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedOptions:
    """Choose the weights, their rounding, and what the server accepts."""

    weights: Annotated[
        str | None,
        Setting("A folder with other weights, in the layout of the hub. Not set: those that ship."),
    ] = None
    damage: Annotated[
        Damage, Setting("To how few bits the linear layers are rounded, for real.")
    ] = "none"
    also: Annotated[
        dict[str, Damage] | None,
        Setting("Further names of the same weights, each with its damage, as in {damaged: int3}."),
    ] = None
    strict_fields: Annotated[
        bool, Setting("Fields of a request that are not known are refused.")
    ] = False
    port: Annotated[int | None, Setting("The port on 127.0.0.1. Not set: a free one.")] = None

    @property
    def folder(self) -> Path:
        """Return the folder of the weights."""
        return WEIGHTS if self.weights is None else Path(self.weights).expanduser()


def commands(context: LaunchContext, options: EmbeddedOptions) -> list[list[str]]:
    """Return the one command line that `launch` would start with these options.

    Raises LaunchError when there are no weights, or two models of one name, and PlanError without
    what serves it.
    """
    check_installed(NAME)
    folder, model, also = options.folder, context.model or NAME, options.also or {}
    if not (folder / "config.json").is_file():
        raise LaunchError(
            f"{NAME}: {folder} has no config.json",
            hint="`weights` names a folder as the hub has it.",
        )
    if model in also:
        raise LaunchError(f"{NAME}: `also` names {model}, which is the model's own name")
    command = [sys.executable, "-m", "launchers._embedded", "--weights", str(folder.absolute())]
    for name, how in {model: options.damage, **also}.items():
        command += ["--model", f"{name}={how}"]
    command += ["--strict-fields"] * options.strict_fields
    command += [] if options.port is None else ["--port", str(options.port)]
    return [[*command, "--ready-file", str(_ready(context))]]


@asynccontextmanager
async def launch(context: LaunchContext, options: EmbeddedOptions) -> AsyncIterator[Endpoint]:
    """Start the server of the model on 127.0.0.1 and yield its endpoint. Raises LaunchError when it
    does not start.
    """
    [command] = commands(context, options)
    log_file = context.log_dir / f"{NAME}.log"
    async with own_server(command, ready_file=_ready(context), log_file=log_file) as (url, server):
        info = ServerInfo(
            launcher=NAME,
            pid=server.pid,
            log_file=str(log_file),
            damage=options.damage,
            also=options.also or {},
        )
        yield Endpoint(base_url=url, model=context.model or NAME, info=info)


def beginning(options: EmbeddedOptions) -> str:
    """Return the token that begins a text to the model; it need not run."""
    return beginning_of(read(options.folder))


def _ready(context: LaunchContext) -> Path:
    return context.log_dir / f"{NAME}.url"
