"""The folder is the registry: a file `serve_eval/tasks/arc.py` is the task `arc`, with nothing else to register.

Every module of such a folder offers one function (`task`, `launch`, `judge`) whose keyword-only parameters are the
options of the plan; the first line of the module's docstring is what the list command shows. Files that start with an
underscore are shared code and not offered. A task that has a parameter before its options is a family of them:
`lm_eval:arc` calls that of `lm_eval` with "arc".
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import pkgutil
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from serve_eval.errors import PlanError

ENTRY_POINTS = {
    "serve_eval.tasks": "task",
    "serve_eval.scorers": "scorer",
    "launchers": "launch",
    "serve_eval.verdicts": "judge",
}
SCORERS = "serve_eval.scorers"
"""The folder that also holds what only tasks score by: a file of it is offered when it has the function."""
FAMILIES = "serve_eval.tasks"
"""The folder whose functions may make a whole family; those of the others are handed what they work on."""


def names(folder: str) -> list[str]:
    """Names offered by a folder given as a package name, sorted."""
    paths = importlib.import_module(folder).__path__
    found = sorted(module.name for module in pkgutil.iter_modules(paths) if not module.name.startswith("_"))
    if folder != SCORERS:
        return found
    return [name for name in found if hasattr(importlib.import_module(f"{folder}.{name}"), ENTRY_POINTS[folder])]


def nearest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean X?" for the known name closest to `name`, else the known names, else nothing."""
    known, name = list(known), str(name)
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {folded[close[0]]!r}?"
    return f" Known: {', '.join(known[:8])}{f' and {len(known) - 8} more' if len(known) > 8 else ''}." if known else ""


def load(folder: str, name: str) -> Callable[..., Any]:
    """The function that a folder's module offers; of a family, that of the member. Raises PlanError with the nearest
    known name."""
    known = names(folder)
    file, colon, member = name.partition(":")
    kind = ENTRY_POINTS[folder].replace("launch", "launcher").replace("judge", "verdict rule")
    if file not in known:
        raise PlanError(f"unknown {kind} {name!r}.{nearest(name, known)}")
    make = function(folder, file)
    parameter = family_of(folder, make)
    if parameter is None and colon:
        raise PlanError(f"unknown {kind} {name!r}: {file} is one {kind} and takes no name after a colon")
    if parameter is None:
        return make
    if not member:
        raise PlanError(f"{file} is a family of {kind}s: say which one, {file}:{parameter.upper()}")

    @functools.wraps(make)
    def of_member(**options: object) -> Any:
        return make(member, **options)

    return of_member


def function(folder: str, file: str) -> Callable[..., Any]:
    """What a file of the folder offers, as it stands there."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"{folder}.{file}"), ENTRY_POINTS[folder])
    return found


def family_of(folder: str, function: Callable[..., Any]) -> str | None:
    """What the members of a family of tasks are called; None for a function that makes one thing."""
    if folder != FAMILIES:
        return None
    parameters = inspect.signature(function).parameters.values()
    before = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return before[0] if before else None


def summary(folder: str, name: str) -> str:
    """The first line of the module's docstring."""
    doc = importlib.import_module(f"{folder}.{name}").__doc__ or ""
    return doc.strip().partition("\n")[0]


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function, which are its options."""
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, object],
    where: str,
    *,
    also: Mapping[str, Any] | None = None,
) -> dict[str, object]:
    """Options converted to the annotated types. `also` has further ones that are taken, with their types.

    Raises PlanError with every problem, each starting with `where`.
    """
    known = options_of(function)
    hints = {**(also or {}), **typing.get_type_hints(function)}
    problems: list[str] = []
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known and name not in (also or {}):
            problems.append(f"{where}.{name}: unknown option.{nearest(name, (*known, *(also or {})))}")
            continue
        try:
            checked[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            choices = _choices(hints[name])
            known_ones = f".{nearest(str(value), choices)}" if choices else ""
            problems.append(f"{where}.{name}: {error}{known_ones}")
        else:
            if isinstance(checked[name], float) and not math.isfinite(checked[name]):
                problems.append(f"{where}.{name}: must be a finite number")
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in options]
    problems += [f"{where}.{name}: required" for name in missing]
    if problems:
        raise PlanError(problems)
    return checked


def _choices(hint: Any) -> list[str]:
    """The words that a type allows, be it one of several."""
    if typing.get_origin(hint) is typing.Literal:
        return [str(choice) for choice in typing.get_args(hint)]
    return [choice for part in typing.get_args(hint) for choice in _choices(part)]
