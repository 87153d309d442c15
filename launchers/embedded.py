"""Serve the embedded model, a tiny language model shipped with serve-eval, on one CPU core.

numpy computes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from serve_eval.errors import LaunchError
from serve_eval.launchers._embedded.damage import CacheFault, Damage
from serve_eval.launchers._embedded.tokenizer import Chat, Tokenizer
from serve_eval.launchers._process.server_process import check_installed, own_server
from serve_eval.plugins.setting import Setting
from serve_eval.processes.child_process import build_command
from serve_eval.protocol.chat_template import beginning as beginning_of
from serve_eval.protocol.chat_template import read_special_tokens
from serve_eval.schema import Endpoint, LaunchContext, Prompt, ServerInfo

NAME = "embedded"
WEIGHTS = Path(__file__).with_name("_embedded") / "model"
"""The weights shipped with serve-eval, in the layout of the Hugging Face hub."""


@dataclass(frozen=True, kw_only=True)
class EmbeddedOptions:
    """Choose the weights, their rounding, and what the server accepts."""

    weights: Annotated[
        str | None,
        Setting(
            "Folder with other weights, in the layout of the hub. Not set: the weights that ship."
        ),
    ] = None
    damage: Annotated[
        Damage,
        Setting("Damage to the weights: the number of bits that the linear layers are rounded to."),
    ] = "none"
    also: Annotated[
        dict[str, Damage] | None,
        Setting("Further names for the same weights, each with its damage, as in {damaged: int3}."),
    ] = None
    cache_blocks: Annotated[
        int,
        Setting("Blocks of 16 tokens in the prefix cache; usage then has cached_tokens. 0: none."),
    ] = 0
    host_blocks: Annotated[
        int, Setting("Blocks that leave the prefix cache and are kept in host memory.")
    ] = 0
    cache_fault: Annotated[
        CacheFault,
        Setting(
            "Fault of the prefix cache: all hits lack values (hits), reloaded blocks are others"
            " (reload), evicted ones are found as others (evicted)."
        ),
    ] = "none"
    sampling_defaults: Annotated[
        dict[str, float] | None,
        Setting(
            "Sampling fields of requests that lack them, as a generation_config.json sets them:"
            " {repetition_penalty: 1.05}."
        ),
    ] = None
    strict_fields: Annotated[bool, Setting("Refuse requests with unknown fields.")] = False
    port: Annotated[int | None, Setting("Port on 127.0.0.1. Not set: a free one.")] = None

    @property
    def folder(self) -> Path:
        """The folder of the weights."""
        return WEIGHTS if self.weights is None else Path(self.weights).expanduser()


def commands(context: LaunchContext, options: EmbeddedOptions) -> list[list[str]]:
    """Return the one command line that `launch` would start with these options.

    Raises LaunchError if there are no weights or two models have the same name, PlanError if the
    packages that the server needs are missing.
    """
    check_installed(NAME)
    folder, model, also = options.folder, context.model or NAME, options.also or {}
    if not (folder / "config.json").is_file():
        raise LaunchError(
            f"{NAME}: {folder} has no config.json",
            hint="Set `weights` to a folder in the layout of the hub.",
        )
    if min(options.cache_blocks, options.host_blocks) < 0 or (
        not options.cache_blocks and (options.host_blocks or options.cache_fault != "none")
    ):
        raise LaunchError(
            f"{NAME}: `host_blocks` and `cache_fault` need a prefix cache",
            hint="Set `cache_blocks` to 1 or more.",
        )
    if model in also:
        raise LaunchError(f"{NAME}: `also` names {model}, which is already the name of the model")
    command = build_command("serve_eval.launchers._embedded", "--weights", str(folder.absolute()))
    for name, how in {model: options.damage, **also}.items():
        command += ["--model", f"{name}={how}"]
    for name, value in (options.sampling_defaults or {}).items():
        command += ["--default", f"{name}={value:g}"]
    command += ["--strict-fields"] * options.strict_fields
    if options.cache_blocks:
        command += ["--cache-blocks", str(options.cache_blocks)]
        command += ["--host-blocks", str(options.host_blocks)]
        command += ["--cache-fault", options.cache_fault]
    command += [] if options.port is None else ["--port", str(options.port)]
    return [[*command, "--ready-file", str(_ready(context))]]


@asynccontextmanager
async def launch(context: LaunchContext, options: EmbeddedOptions) -> AsyncIterator[Endpoint]:
    """Start the server of the model on 127.0.0.1 and yield its endpoint.

    Raises LaunchError if it does not start.
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
    """Return the token at the beginning of a text for this model; the model need not run."""
    return beginning_of(read_special_tokens(options.folder))


def count_tokens(prompt: Prompt, options: EmbeddedOptions) -> int:
    """Return the number of tokens of a prompt; the model need not run."""
    if not isinstance(prompt, str):
        chat = Chat(options.folder)
        try:
            prompt = chat(prompt, {})
        finally:
            chat.close()
    return len(_tokenizer(options.folder).encode(prompt))


@lru_cache(maxsize=2)
def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder / "tokenizer.json")


def _ready(context: LaunchContext) -> Path:
    return context.log_dir.absolute() / f"{NAME}.url"
