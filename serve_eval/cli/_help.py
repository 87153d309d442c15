"""Write the help of a command as plain text: usage, purpose, examples, and options by panel.

A command with many options shows the usual ones; --help-all shows all of them. Flags are shown
without a type. rich is not used, since its import takes longer than the rest of `--help`.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from serve_eval.cli._clear_values import convert_clear_values
from serve_eval.cli._common_options import ScreenOptions
from serve_eval.cli._options import EVERYTHING, Examples
from serve_eval.plugins.setting import Declared

MOST_WIDTH = 80
"""Most columns of the text, even on a wider terminal: long lines are hard to read."""
MOST_INDENT = 30
"""Most columns before the meaning of an option; after longer flags it starts on the next line."""
METAVARS = {
    "int": "N",
    "float": "NUMBER",
    "str": "TEXT",
    "Path": "PATH",
    "path": "PATH",
    "file": "PATH",
}
"""Placeholders for a value by its type, unless an option declares its own."""

Row = tuple[str, str]
"""The text to type, and its meaning."""


class HelpedCommand(TyperCommand):
    """A command with plain-text help."""

    usual: tuple[str, ...] = ()
    examples: Examples = ()
    titles: tuple[str, ...] = ()
    own: tuple[Declared, ...] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; if `usual` is set, its short form."""
        formatter.write(f"{page(self, ctx, everything=not self.usual)}\n")

    def get_params(self, ctx: Any) -> Any:
        """Return the options, which convert clear values without pydantic.

        Every command takes --help-all, also one whose help is never shortened.
        """
        params = convert_clear_values(super().get_params(ctx))
        return params if any(EVERYTHING in one.opts for one in params) else [*params, _help_all()]

    def full_help(self, ctx: Any) -> str:
        """Return the help with all options."""
        return page(self, ctx, everything=True)


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(context.get_help())
        raise typer.Exit


def _hold_help_all(
    help_all: Annotated[
        bool,
        typer.Option(
            EVERYTHING, is_eager=True, expose_value=False, hidden=True, callback=_show_help
        ),
    ] = False,
) -> None:
    """Hold the option, which typer makes only for a command."""


@functools.cache
def _help_all() -> Any:
    """Return a hidden option that prints the help as it is."""
    holder = typer.Typer(add_completion=False)
    holder.command()(_hold_help_all)
    return next(one for one in typer.main.get_command(holder).params if EVERYTHING in one.opts)


def page(command: HelpedCommand, ctx: Any, *, everything: bool) -> str:
    """Return the help of a command."""
    from serve_eval.cli._examples import find_examples, format_examples  # a run needs none

    width = min(MOST_WIDTH, ctx.terminal_width or shutil.get_terminal_size().columns)
    pieces = " ".join(command.collect_usage_pieces(ctx))
    blocks = [
        _wrap(f"Usage: {ctx.command_path} {pieces}", width, "", "  "),
        *_purpose(command, width),
    ]
    if command.titles:
        blocks.append(_wrap(f"Answers: {', '.join(command.titles)}.", width))
    if examples := command.examples or find_examples(ctx):
        blocks.append(format_examples(examples))
    params = [one for one in command.get_params(ctx) if not getattr(one, "hidden", False)]
    arguments = [one for one in params if one.param_type_name == "argument"]
    options = [one for one in params if one.param_type_name == "option"]
    if everything:
        panels = {
            title: [_row(one) for one in of_one] for title, of_one in _by_panel(options).items()
        }
        panels["Set by --set"] = [
            (f"    {one.place}={one.setting.metavar or 'true'}", one.setting.help)
            for one in command.own
        ]
    else:
        known = {one.name: one for one in options}
        panels = {"Usual options": [_row(known[name]) for name in command.usual]}
    panels = {
        "Arguments": [(_metavar(one, one.name.upper()), _meaning(one)) for one in arguments],
        **panels,
    }
    blocks += [_panel(title, rows, width) for title, rows in panels.items() if rows]
    if not everything:
        blocks.append(f"All {len(options)} options: {ctx.command_path} {EVERYTHING}")
    return "\n\n".join(blocks)


def _purpose(command: Any, width: int) -> list[str]:
    """Return the paragraphs of the docstring."""
    text = inspect.cleandoc(command.help or "")
    return [
        _wrap(" ".join(paragraph.split()), width) for paragraph in text.split("\n\n") if paragraph
    ]


def _by_panel(options: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the options by panel.

    Those without a panel come last, but before the form of the output if nothing else has one.
    """
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(option.rich_help_panel or "", []).append(option)
    rest = panels.pop("", [])
    if panels.keys() <= {ScreenOptions.title}:
        return {"Options": rest, **panels}
    return {**panels, "Other options": rest}


def _row(option: Any) -> Row:
    short = [flag for flag in option.opts if not flag.startswith("--")]
    long = [flag for flag in (*option.opts, *option.secondary_opts) if flag.startswith("--")]
    value = "" if option.is_flag else f" {_metavar(option)}"
    lead = f"{', '.join(short)}, " if short else "    "
    return f"{lead}{', '.join(long)}{value}", _meaning(option)


def _meaning(param: Any) -> str:
    """Return the meaning of a parameter, with its default unless the text states it."""
    text, default = param.help or "", param.default
    untold = (
        default is None or isinstance(default, bool | list) or callable(default) or default == ""
    )
    if param.required and param.param_type_name == "option":
        more = "required"
    elif untold or not param.show_default or "default" in text.lower():
        return text
    else:
        more = f"default {default:g}" if isinstance(default, float) else f"default {default}"
    return f"{text.removesuffix('.')} ({more})."


def _metavar(param: Any, otherwise: str = "") -> str:
    """Return the placeholder for the value."""
    if param.metavar:
        return str(param.metavar)
    if otherwise:
        return otherwise
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    names = (getattr(kind, "__args__", None) or (kind,))[0]
    return METAVARS.get(getattr(names, "__name__", ""), "TEXT")


def _panel(title: str, rows: Sequence[Row], width: int) -> str:
    """Return a title and its rows in two columns."""
    fitting = [len(typed) for typed, _ in rows if len(typed) + 4 <= MOST_INDENT]
    indent = max(fitting, default=MOST_INDENT - 4) + 4
    lines = [f"{title}:"]
    for typed, text in rows:
        told = textwrap.wrap(
            text, width - indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
        beside = len(typed) + 4 <= indent
        lines.append(f"  {typed.ljust(indent - 2)}{told[0]}".rstrip() if beside else f"  {typed}")
        lines += [f"{'':{indent}}{line}" for line in told[beside:]]
    return "\n".join(lines)


def _wrap(text: str, width: int, first: str = "", others: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
