"""Derive the flags of a command, and the settings of a plan, from structures of options.

A command takes structures next to its own parameters, each filled with the given options:

    @command(usual=("model", "tasks"), examples=[("Judge:", "serve-eval run --tasks mmlu")])
    def run(asked: AskedOptions, limits: LimitsOptions) -> None: ...
"""

from __future__ import annotations

import inspect
import json
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from serve_eval.cli._ci_files import tell_ending
from serve_eval.cli._streams import be_quiet
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.closest import nearest
from serve_eval.plugins.setting import Declared, list_declared
from serve_eval.secret_signs import find_secrets
from serve_eval.shell_words import join_words

EVERYTHING = "--help-all"
Examples = Sequence[tuple[str, str]]
"""Pairs of a line of text and the command that it describes."""


@freeze
class Command:
    """A command: the function that typer reads, and the content of its help.

    `usual` names the parameters that --help shows, in this order; --help-all shows all of them.
    `own` are options of the command itself that have no flag: --set takes them.
    """

    function: Callable[..., None]
    usual: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    own: tuple[Declared, ...] = ()


def command(
    *, usual: Sequence[str] = (), examples: Examples = (), every_variable: bool = False
) -> Callable[[Callable[..., None]], Command]:
    """Make a Command of a function.

    With `every_variable`, each option can also be set by its SERVE_EVAL_* variable.
    """

    def make(function: Callable[..., None]) -> Command:
        flat = _flatten(function, every_variable=every_variable, more=[_HELP_ALL] if usual else [])
        own = tuple(one for one in _list_own(function).values() if not one.setting.flag)
        return Command(function=flat, usual=tuple(usual), examples=tuple(examples), own=own)

    return make


def settings_of(*sections: Any, only: Collection[str] | None = None) -> dict[str, Any]:
    """Return the options given in the sections as settings for `resolve`.

    With `only`, options with other names are skipped. If two options have the same key, lists are
    joined, False is kept, and otherwise the second value replaces the first. Raises PlanError for a
    value that cannot be parsed.
    """
    found: dict[str, Any] = {}
    for section in sections:
        structure: Any = type(section)
        for option in list_declared(structure):
            value = getattr(section, option.name)
            if (
                value is None
                or option.setting.refused
                or (only is not None and option.name not in only)
            ):
                continue
            if option.setting.parse is not None:
                value = option.setting.parse(value)
            if value is not None:
                name = option.key.rpartition(".")[2]
                found[name] = _join(found.get(name), value)
    if "set" not in found:
        return found
    from serve_eval.plan.settings import spread_keys

    return spread_keys(found)


def list_given_flags(ctx: typer.Context) -> set[str]:
    """Return the names of the parameters that were given as flags, not by variables."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def lines_of(variable: str) -> list[str]:
    """Return the values of a repeated option from a variable, one per line."""
    return [line for line in os.environ.get(variable, "").splitlines() if line.strip()]


def _join(first: Any, second: Any) -> Any:
    if isinstance(first, list):
        return [*first, *second]
    return first if first is False else second


def _flatten(
    function: Callable[..., None], *, every_variable: bool, more: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return the function with one parameter for each option of its structures.

    The parameters `more` are added, but not passed on to the function.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    structures = _find_structures(hints)
    options = {name: list_declared(structure) for name, structure in structures.items()}
    own = _list_own(function)

    def call(**given: Any) -> None:
        for option in (option for of_one in options.values() for option in of_one):
            if option.setting.refused is not None and given[option.name] not in (None, False):
                message, hint = option.setting.refused
                raise PlanError(message, hint=hint)
        for one in more:
            given.pop(one.name, None)
        asked: dict[str, Any] = {}
        given |= _take_own(given, own)
        for name, structure in structures.items():
            values = {
                one.name: _value(one, given.pop(one.name), every_variable) for one in options[name]
            }
            given[name] = structure(**values)
            asked |= values
            if values.get("quiet"):
                be_quiet()
        if "notify_text" not in asked:
            function(**given)
            return
        with tell_ending(_name_command(function), _name_call(given, asked), asked):
            function(**given)

    parameters = [*more]
    for name, parameter in inspect.signature(function).parameters.items():
        if name in structures:
            title = structures[name].title  # type: ignore[attr-defined]
            parameters += [_parameter(one, title, every_variable) for one in options[name]]
        else:
            parameters.append(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            )
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return call


def _find_structures(hints: Mapping[str, Any]) -> dict[str, type]:
    return {
        name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)
    }


def _list_own(function: Callable[..., None]) -> dict[str, Declared]:
    """Return the options of the command itself, by their places for --set."""
    hints = typing.get_type_hints(function, include_extras=True)
    of_all = (list_declared(one) for one in _find_structures(hints).values())
    return {one.place: one for of_one in of_all for one in of_one if one.command}


def _take_own(given: Mapping[str, Any], own: Mapping[str, Declared]) -> dict[str, Any]:
    """Return the options that --set changes: those of the command itself, and the rest of it."""
    if not own or not given.get("settings"):
        return {}

    rest, found = take_own(given["settings"], own)
    return {**found, "settings": rest or None}


def _name_command(function: Callable[..., None]) -> str:
    """Return the words after `serve-eval` that call a function, or else its name."""
    from serve_eval.cli._commands import walk

    place = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    words = (" ".join(words) for words, entry in walk() if entry.place == place)
    return next(words, function.__name__)


def _name_call(given: dict[str, Any], asked: dict[str, Any]) -> str:
    """Return what a command is about: its arguments, or else its tasks and its model."""

    def list_texts(values: Iterable[Any]) -> list[str]:
        lists = [value if isinstance(value, list) else [value] for value in values]
        return [str(one) for of in lists for one in of if isinstance(one, str | Path)]

    named = [asked.get("tasks"), asked.get("model")]
    return " ".join(list_texts(given.values()) or list_texts(named))


def _parameter(option: Declared, title: str, every_variable: bool) -> inspect.Parameter:
    """Return an option as a parameter for typer."""
    reads = _reads_variable(option, every_variable) and not option.repeated
    info = typer.Option(
        *option.flags,
        help=option.setting.help,
        metavar=option.setting.metavar or None,
        envvar=option.variable if reads else None,
        show_envvar=False,
        rich_help_panel=title,
        hidden=option.setting.refused is not None or not option.setting.flag,
        callback=None if option.setting.flag else _make_refusal(option, every_variable),
    )
    kind = option.kind if option.default is not None else option.kind | None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option.default,
        annotation=Annotated[kind, info],
    )


def _make_refusal(option: Declared, every_variable: bool) -> Callable[[typer.Context, Any], Any]:
    """Return the callback of an option without a flag: it lets the value of a variable pass.

    It raises PlanError for a flag, with what to write instead.
    """

    def refuse(ctx: typer.Context, value: Any) -> Any:
        source = ctx.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            on, _, off = option.flags[0].partition("/")
            read = _reads_variable(option, every_variable)
            variable = f", and a variable as {option.variable}" if read else ""
            raise PlanError(
                f"there is no option {off if value is False and off else on}:"
                f" write {write_setting(option, value)}",
                hint="" if option.command else f"A plan has it as {option.place}{variable}.",
            )
        return value

    return refuse


def write_setting(option: Declared, value: Any) -> str:
    """Return the words that set an option without a flag to a value, which no secret is in."""
    given = option.setting.parse(value) if option.setting.parse is not None else value
    if any(find_secrets(given)):
        return join_words(["--set", f"{option.place}=VALUE"])
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):
        (given,) = given
    text = str(given) if isinstance(given, str | Path) else json.dumps(given, ensure_ascii=False)
    return join_words(["--set", f"{option.place}={text}"])


def _value(option: Declared, value: Any, every_variable: bool) -> Any:
    """Return a value; for a repeated option that was not given, the lines of its variable."""
    if not option.repeated:
        return value
    return (
        value
        or (lines_of(option.variable) if _reads_variable(option, every_variable) else None)
        or None
    )


def _reads_variable(option: Declared, every_variable: bool) -> bool:
    return option.setting.variable == "always" or (
        every_variable and option.setting.variable == "run"
    )


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(ctx.command.full_help(ctx))  # type: ignore[attr-defined]
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            EVERYTHING, help="Show all options and exit.", is_eager=True, callback=_show_all
        ),
    ],
)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def take_own(texts: Sequence[str], own: Mapping[str, Declared]) -> tuple[list[str], dict[str, Any]]:
    """Return the texts that set no option of the command, and the values of those that do.

    `own` has the options by their places. Raises PlanError for an unknown option, and for a value
    of another kind.
    """
    rest, found = [], dict[str, Any]()
    commands = {one.command for one in own.values()}
    for text in texts:
        place, equals, raw = text.partition("=")
        if place.partition(".")[0] not in commands or not equals:
            rest.append(text)
            continue
        option = own.get(place)
        if option is None:
            raise PlanError(f"--set {text}: there is no option {place}.{nearest(place, own)}")
        value = _read_value(option, raw, text)
        earlier = found.get(option.name, ())
        found[option.name] = [*earlier, *value] if option.repeated else value
    return rest, found


def _read_value(option: Declared, raw: str, text: str) -> Any:
    """Return a value as the flag gives it: a number, a word, a path, or a list of them."""
    if option.repeated:
        (kind,) = option.kind.__args__
        given = _read_yaml(raw)
        return [_convert(one, kind, text) for one in (given if isinstance(given, list) else [raw])]
    return _convert(raw, option.kind, text)


def _convert(raw: Any, kind: Any, text: str) -> Any:
    if kind in (str, Path):
        return kind(raw)
    value = _read_yaml(str(raw))
    try:
        right = isinstance(value, bool) == (kind is bool) and value is not None
        converted = kind(value)
        if right and (kind is not int or converted == float(value)):
            return converted
    except (TypeError, ValueError, OverflowError):
        pass
    raise PlanError(f"--set {text}: expected {_KINDS[kind]}")


def _read_yaml(raw: str) -> Any:
    try:
        return yaml.safe_load(raw)
    except yaml.YAMLError:
        return raw
