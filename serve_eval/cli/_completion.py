"""Complete a command line for a shell: commands, options, and names that an option takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

OUTPUTS = Path("outputs")
LATEST = "latest"
_RUNS = ("run", "runs", "a", "b", "resume")
"""Parameters that take a run folder."""


def print_completions() -> None:
    """Print what the last argument of this process can become, a line each.

    The scripts of `serve-eval completion` set _SERVE_EVAL_COMPLETE for it. Nothing is printed where
    the shell completes file names.
    """
    words = sys.argv[1:]
    words = words[1:] if words[:1] == ["--"] else words
    for one in complete(words[:-1], words[-1] if words else ""):
        sys.stdout.write(f"{one}\n")


def complete(before: Sequence[str], incomplete: str) -> list[str]:
    """Return what the last word can become, after the words before it."""
    command, rest = _find_command(before)
    if command is None:
        return []
    if not isinstance(command, Mapping):
        return _complete_parameter(command, rest, incomplete)
    return _begin(("--help", "--version", *command) if not before else command, incomplete)


def _find_command(words: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the command that words lead to and its own words; a mapping stands for a group."""
    from serve_eval.cli.app import COMMANDS, make_command

    if not words:
        return COMMANDS, ()
    if words[0] not in COMMANDS:
        return None, ()
    made = make_command(words[0])
    if (below := getattr(made, "commands", None)) is None:
        return made, words[1:]
    return (below.get(words[1]), words[2:]) if len(words) > 1 else (below, ())


def _complete_parameter(command: Any, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the values of the option before the last word, or options, or an argument's values."""
    options = {
        flag: one
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
        for flag in (*one.opts, *one.secondary_opts)
    }
    last = options.get(words[-1]) if words else None
    if last is not None and not last.is_flag:
        return _list_values(last.name, incomplete)
    if incomplete.startswith("-"):
        return _begin((*(flag for flag in options if flag.startswith("--")), "--help"), incomplete)
    arguments = [one.name for one in command.params if one.param_type_name == "argument"]
    return _list_values(arguments[0], incomplete) if arguments else []


def _list_values(name: str, incomplete: str) -> list[str]:
    """Return the values of a parameter; nothing if it takes a file, a number or a text."""
    if name in _RUNS:
        return _begin(_list_runs(), incomplete)
    list_names = _NAMES.get(name)
    if list_names is None:
        return []
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{one}" for one in _begin(list_names(), last)]


def _list_runs() -> list[str]:
    """Return the folders in outputs/, the last one first, and the word for the last one."""
    found = sorted((str(one) for one in OUTPUTS.glob("*/") if not one.is_symlink()), reverse=True)
    return [*([LATEST] if found else []), *found]


def _list_alternatives(folder: str) -> Callable[[], Iterable[str]]:
    def list_names() -> Iterable[str]:
        from serve_eval.plugins import registry

        return registry.names(folder)

    return list_names


_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "tasks": _list_alternatives("serve_eval.tasks"),
    "task": _list_alternatives("serve_eval.tasks"),
    "launcher": _list_alternatives("serve_eval.launchers"),
    "verdict": _list_alternatives("serve_eval.verdicts.rules"),
    "what": lambda: ("tasks", "launchers", "verdicts"),
    "shell": lambda: ("bash", "zsh", "fish"),
    "order": lambda: ("random", "natural", "prefix", "longest"),
}
"""The values to offer for each parameter, by its name."""


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
