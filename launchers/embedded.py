"""The embedded model: a tiny real language model that ships with serve-eval, served by numpy on one core of a CPU."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from launchers import _meanings
from launchers._embedded.damage import Damage
from launchers._process.own_server import check_installed, own_server
from serve_eval.errors import LaunchError
from serve_eval.protocol.special_tokens import beginning as beginning_of
from serve_eval.protocol.special_tokens import read
from serve_eval.schema import Endpoint, LaunchContext, ServerInfo

NAME = "embedded"
WEIGHTS = Path(__file__).with_name("_embedded") / "model"
"""The weights that ship, in the layout of the hub."""
MEANINGS = _meanings.EMBEDDED


def commands(
    context: LaunchContext,
    *,
    weights: str | None = None,
    damage: Damage = "none",
    also: dict[str, Damage] | None = None,
    strict_fields: bool = False,
    port: int | None = None,
) -> list[list[str]]:
    """The one command line that `launch` would start with these options. Raises LaunchError when there are no weights,
    or two models of one name, and PlanError without what serves it."""
    check_installed(NAME)
    folder, model = WEIGHTS if weights is None else Path(weights).expanduser(), context.model or NAME
    if not (folder / "config.json").is_file():
        raise LaunchError(f"{NAME}: {folder} has no config.json", hint="`weights` names a folder as the hub has it.")
    if model in (also or {}):
        raise LaunchError(f"{NAME}: `also` names {model}, which is the model's own name")
    command = [sys.executable, "-m", "launchers._embedded", "--weights", str(folder.absolute())]
    for name, how in {model: damage, **(also or {})}.items():
        command += ["--model", f"{name}={how}"]
    command += ["--strict-fields"] * strict_fields
    command += [] if port is None else ["--port", str(port)]
    return [[*command, "--ready-file", str(_ready(context))]]


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    weights: str | None = None,
    damage: Damage = "none",
    also: dict[str, Damage] | None = None,
    strict_fields: bool = False,
    port: int | None = None,
) -> AsyncIterator[Endpoint]:
    """Starts the server of the model on 127.0.0.1 and yields its endpoint.

    `weights` is a folder with others (None: those that ship). `damage` rounds the linear layers to few bits, for real;
    `also` serves the same weights under more names, each with its damage. `strict_fields` refuses fields that the
    server does not know; `port` None takes a free one. Raises LaunchError when it does not start.
    """
    [command] = commands(context, weights=weights, damage=damage, also=also, strict_fields=strict_fields, port=port)
    log_file = context.log_dir / f"{NAME}.log"
    async with own_server(command, ready_file=_ready(context), log_file=log_file) as (url, server):
        info = ServerInfo(launcher=NAME, pid=server.pid, log_file=str(log_file), damage=damage, also=also or {})
        yield Endpoint(base_url=url, model=context.model or NAME, info=info)


def beginning(*, weights: str | None = None, **_: object) -> str:
    """Return the token that begins a text to the model; it need not run."""
    return beginning_of(read(WEIGHTS if weights is None else Path(weights).expanduser()))


def _ready(context: LaunchContext) -> Path:
    return context.log_dir / f"{NAME}.url"
