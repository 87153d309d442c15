"""The command line of trtllm-serve: a click group whose default subcommand is `serve`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from serve_eval.launchers._standin.options import COMMANDS, Flavour, ServeOption

Run = Callable[[str, dict[str, Any], frozenset[str]], object]
"""Called for a valid command line: subcommand, parameters, names of the given ones."""

_ALIASES = {"trt": "tensorrt"}


class _Backend(click.Choice[str]):
    """A choice that accepts the old short name of a backend if the long one exists."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = _ALIASES.get(value, value)
        return super().convert(name if name in self.choices else value, param, ctx)


class _Group(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["serve", *args]
        return super().resolve_command(ctx, args)


def group(flavour: Flavour, run: Run) -> click.Group:
    """Return the whole command line.

    With `standalone_mode=False`, a call returns the result of `run`.
    """
    commands = [
        _command(name, options, has_model, flavour, run)
        for name, (options, flavours, has_model) in COMMANDS.items()
        if flavour in flavours
    ]
    return _Group("trtllm-serve", commands={command.name or "": command for command in commands})


def _command(
    name: str, options: tuple[ServeOption, ...], has_model: bool, flavour: Flavour, run: Run
) -> click.Command:
    def callback(**params: Any) -> object:
        context = click.get_current_context()
        given = {
            key
            for key in params
            if context.get_parameter_source(key) is ParameterSource.COMMANDLINE
        }
        return run(name, _plain(params), frozenset(given))

    params: list[click.Parameter] = [
        _parameter(option) for option in options if flavour in option.flavours
    ]
    if has_model:
        params.insert(0, click.Argument(["model"]))
    summary = (
        "Running an OpenAI API compatible server (or its gRPC form)." if name == "serve" else None
    )
    return click.Command(
        name, params=params, callback=callback, help=summary if flavour == "v12" else None
    )


def _parameter(option: ServeOption) -> click.Option:
    kind: Any = option.kind
    if isinstance(kind, tuple):
        kind = _Backend(kind) if option.name == "backend" else click.Choice(kind)
    elif kind == "path":
        kind = click.Path(exists=True)
    elif option.least is not None:
        kind = click.IntRange(min=option.least)
    declared = [option.name, *option.flags.split()]
    if option.kind == "flag":
        return click.Option(declared, is_flag=True, default=option.default)
    return click.Option(declared, type=kind, default=option.default, multiple=option.many)


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in params.items()
    }
