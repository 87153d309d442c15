"""Find tasks, scorers, launchers and verdict rules by their names.

A saved plan keeps its folders of code, but their code runs only if the user names them again. Until
then serve-eval looks for the names of their files only.

Files need no registration. Each module of these packages offers one function (`task`, `scorer`,
`launch`, `judge`). Its keyword-only parameters, or the fields of the structure that it takes
(`declarations.py`), are the options in the plan. The first line of the module's docstring is its
summary. Files that start with an underscore are shared code and are not offered. Variants that one
file makes have the names that VARIANTS of the package lists. A task function
with a parameter before its options is a family: `lm_eval:arc` calls that of `lm_eval` with "arc".
External code of the same shape (`extensions.py`) is found as well, and is checked when it is
loaded.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from serve_eval.errors import PlanError, WithheldCodeError
from serve_eval.plugins import declarations, extensions
from serve_eval.plugins.closest import find_closest as find_closest
from serve_eval.plugins.closest import nearest as nearest
from serve_eval.plugins.declarations import Option, check_options_named, check_shape, read_options
from serve_eval.plugins.returned import check_returned
from serve_eval.plugins.scope import current, open_scope
from serve_eval.shell_words import quote_path


def withhold(folders: Iterable[str]) -> None:
    """Add the folders of a saved plan to the scope, without permission to run their code."""
    known = open_scope().withheld
    known += [folder for folder in folders if folder not in known]


def find_withheld(folder: str, name: str) -> list[str]:
    """Return the withheld folders that offer a name of one of our packages.

    If none does, they are those that are gone: the code may have been there.
    """
    found = current()
    withheld = [] if found is None else found.withheld
    having = [one for one in withheld if _offers(Path(one), folder, name.partition(":")[0])]
    return having or [one for one in withheld if not Path(one).is_dir()]


def _offers(place: Path, folder: str, name: str) -> bool:
    if name == extensions.LM_EVAL and (place / extensions.LM_EVAL).is_dir():
        return True
    kind = place / extensions.KINDS[folder]
    return (kind / f"{name}.py").is_file() or (kind / name / "__init__.py").is_file()


def explain_withheld(wanted: Sequence[str], folders: Sequence[str]) -> WithheldCodeError:
    """Return the error for what a saved plan takes from folders that were not named again."""
    folder = "folder" if len(folders) == 1 else "folders"
    return WithheldCodeError(
        f"the saved plan takes its {', '.join(wanted)} from {', '.join(folders)},"
        f" whose code runs only if you name the {folder} again",
        hint=f"If you trust it: {name_folders(folders).strip()}",
    )


def name_folders(folders: Iterable[str]) -> str:
    """Return the flags that name folders of code, each after a space."""
    return "".join(f" --include-path {quote_path(path)}" for path in dict.fromkeys(folders))


ENTRY_POINTS = {
    "serve_eval.tasks": "task",
    "serve_eval.scorers": "scorer",
    "serve_eval.launchers": "launch",
    "serve_eval.verdicts.rules": "judge",
}
SCORERS = "serve_eval.scorers"
"""A package that also holds scorers for tasks only: a file is offered if it has the function."""
FAMILIES = "serve_eval.tasks"
"""The package whose functions may be families; functions of the others take the data to work on."""


def names(folder: str) -> list[str]:
    """Return the names that one of our packages and external code offer, sorted."""
    return sorted({*list_shipped(folder), *extensions.names(folder)})


def places(packages: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the paths where this process searches for files of the given packages."""
    return {folder: tuple(_package(folder).__path__) for folder in packages}


def look_in(found: Mapping[str, Sequence[str]]) -> None:
    """Search these paths in this process too."""
    for folder, paths in found.items():
        _package(folder).__path__ = list(paths)


def _package(folder: str) -> ModuleType:
    return importlib.import_module(folder)


def list_shipped(folder: str) -> list[str]:
    """Return the names that one of our packages offers, sorted."""
    paths = _package(folder).__path__
    return list(_list_modules(folder, tuple((path, _read_mtime(path)) for path in paths)))


def _read_mtime(path: str) -> int:
    """Return when a file was last added to a folder or removed; 0 for a path that is no folder."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


@functools.cache  # each name that is looked up would list the folder again
def _list_modules(folder: str, places: Sequence[tuple[str, int]]) -> Sequence[str]:
    files = (module.name for module in pkgutil.iter_modules([path for path, _ in places]))
    found = sorted({*_variants(folder), *(name for name in files if not name.startswith("_"))})
    if folder != SCORERS:
        return found
    return [
        name
        for name in found
        if hasattr(importlib.import_module(f"{folder}.{name}"), ENTRY_POINTS[folder])
    ]


def _variants(folder: str) -> Mapping[str, str]:
    """Return the names of a package that a file of another name makes, each with that file."""
    found: Mapping[str, str] = getattr(_package(folder), "VARIANTS", {})
    return found


def find_documented(folder: str, name: str) -> object:
    """Return what documents a name: a file of ours, a function for a variant, or external code."""
    if others := extensions.find(folder, name):
        return others[0].get()
    if file := _variants(folder).get(name):
        return getattr(importlib.import_module(f"{folder}.{file}"), name)
    return importlib.import_module(f"{folder}.{name}")


def load(folder: str, name: str, *, checked: bool = False) -> Callable[..., Any]:
    """Return the function for a name; for a member of a family, one that makes this member.

    With `checked`, a function of ours is checked like an external one, as `function` says. Raises
    PlanError for an unknown name, with the nearest known one.
    """
    known = names(folder)
    file, colon, member = name.partition(":")
    kind = kind_of(folder)
    if file not in known and (folders := find_withheld(folder, name)):
        raise explain_withheld([f"{kind} {name!r}"], folders)
    if file not in known:
        raise PlanError(f"unknown {kind} {name!r}.{nearest(name, known)}")
    make = function(folder, file, checked=checked)
    if folder in (FAMILIES, SCORERS):
        check_options_named(make, file)
    parameter = family_of(folder, make)
    if parameter is None and colon:
        raise PlanError(
            f"unknown {kind} {name!r}: {file} is one {kind} and takes no name after a colon"
        )
    if parameter is None:
        return make
    if not member:
        raise PlanError(
            f"{file} is a family of {kind}s: name one of them, {file}:{parameter.upper()}"
        )

    @functools.wraps(make)
    def of_member(**options: object) -> Any:
        return make(member, **options)

    return of_member


def function(folder: str, file: str, *, checked: bool = False) -> Callable[..., Any]:
    """Return the function of a file.

    The results of an external one are checked, and with `checked` those of one of ours. Raises
    PlanError if two places offer the name, and for external code that cannot be imported or has
    another shape than ours.
    """
    others = extensions.find(folder, file)
    if not others:
        holder: Any = find_documented(folder, file)
        found: Callable[..., Any] = getattr(holder, ENTRY_POINTS[folder], holder)
        if not checked:
            return found
        place = str(sys.modules[found.__module__].__file__)
        check_shape(folder, found, f"{place}: {found.__name__}")
        return check_returned(folder, file, found, place)
    places = [
        *(["serve-eval itself"] if file in list_shipped(folder) else []),
        *(origin.place for origin in others),
    ]
    if len(places) > 1:
        raise PlanError(
            f"two places offer the {kind_of(folder)} {file!r}: {' and '.join(places)}",
            hint="Rename one of them, or remove the folder or package that it comes from.",
        )
    offered, place = others[0].get(), places[0]
    made = (
        getattr(offered, ENTRY_POINTS[folder], None) if isinstance(offered, ModuleType) else offered
    )
    if not inspect.isfunction(made):
        raise PlanError(f"{place}: has no function {ENTRY_POINTS[folder]}(*, ...)")
    check_shape(folder, made, f"{place}: {made.__name__}")
    extensions.note(folder, file, place, sys.modules[made.__module__])
    return check_returned(folder, file, made, place)


def kind_of(folder: str) -> str:
    """Return the word for one alternative of a package."""
    return ENTRY_POINTS[folder].replace("launch", "launcher").replace("judge", "verdict rule")


def family_of(folder: str, function: Callable[..., Any]) -> str | None:
    """Return the word for a member of a family of tasks; None if it is not a family."""
    if folder != FAMILIES:
        return None
    parameters = inspect.signature(function).parameters.values()
    before = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return before[0] if before else None


def summary(folder: str, name: str) -> str:
    """Return the first line of the docstring of a file, or of an external function."""
    return (find_documented(folder, name).__doc__ or "").strip().partition("\n")[0]


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a function by name, from its structure or its parameters."""
    return read_options(function)


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, object],
    where: str,
    *,
    also: Mapping[str, Any] | None = None,
) -> dict[str, object]:
    """Return options converted to their types.

    `also` holds further allowed options with their types. Raises PlanError with all problems, each
    starting with `where`.
    """
    known = options_of(function)
    hints = {**(also or {}), **{name: option.hint for name, option in known.items()}}
    problems: list[str] = []
    checked: dict[str, Any] = {}
    for name, value in options.items():
        strange = [] if name in hints else [name]
        strange = strange or list(declarations.unknown(hints[name], value, name))
        if strange:
            problems += [
                _unknown(path, options, function, (*known, *(also or {})), where)
                for path in strange
            ]
            continue
        choices = _choices(hints[name])
        if type(value) in (int, float) and str(value) in choices and _is_word(hints[name], str):
            value = str(value)  # YAML reads the word 500 as a number
        try:
            checked[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            known_ones = f".{nearest(str(value), choices, shown=len(choices))}" if choices else ""
            told = str(error)
            if not isinstance(value, str) and _is_word(hints[name]):
                told = f"Expected one of its words, got {value!r}"
            quotes = " (YAML reads yes and no as true and false: put a text in quotes)"
            unquoted = quotes if "`str`" in told and "got `bool`" in told else ""
            told, _, below = told.partition(" - at `$")
            place = f"{name}{below.rstrip('`')}"
            unlisted = (
                ""
                if below or "Did you mean" in known_ones or not _takes_list(hints[name])
                else _as_list(value)
            )
            problems.append(f"{where}.{place}: {told}{unquoted}{known_ones}{unlisted}")
        else:
            if isinstance(checked[name], float) and not math.isfinite(checked[name]):
                problems.append(f"{where}.{name}: must be a finite number")
    missing = [name for name, option in known.items() if option.required and name not in options]
    problems += [f"{where}.{name}: required" for name in missing]
    if problems:
        raise PlanError(problems)
    return checked


def _unknown(
    path: str,
    options: Mapping[str, object],
    function: Callable[..., Any],
    top: Iterable[str],
    where: str,
) -> str:
    """Return the message for an unknown option, with suggestions."""
    tree = {option.path: option.hint for option in declarations.options(function)}
    value: Any = options
    for name in path.split("."):
        value = value[name]
    before = path.rpartition(".")[0]
    beside = (
        [one.rpartition(".")[2] for one in tree if one.rpartition(".")[0] == before]
        if before
        else top
    )
    meant = declarations.perhaps(path, value, tree, where) or nearest(
        path.rpartition(".")[2], beside
    )
    return f"{where}.{path}: unknown option.{meant}"


def _takes_list(hint: Any) -> bool:
    return any(typing.get_origin(part) is list for part in (hint, *typing.get_args(hint)))


def _as_list(value: object) -> str:
    """Return a hint on how to write a value as a list."""
    if isinstance(value, str):
        words = [word.strip() for word in value.split(",")]
    elif isinstance(value, (int, float)):
        words = [str(value)]
    else:
        return ""
    return f" A list is written [{', '.join(words)}]."


def _is_word(hint: Any, kind: type = object) -> bool:
    """Return True if a type allows only certain words (or None), all of one `kind`."""
    parts = [hint] if typing.get_origin(hint) is typing.Literal else typing.get_args(hint)
    words = [part for part in parts if part is not type(None)]
    return bool(words) and all(
        typing.get_origin(part) is typing.Literal
        and all(isinstance(word, kind) for word in typing.get_args(part))
        for part in words
    )


def _choices(hint: Any) -> list[str]:
    """Return the words that a type or a part of it allows."""
    if typing.get_origin(hint) is typing.Literal:
        return [str(choice) for choice in typing.get_args(hint)]
    return [choice for part in typing.get_args(hint) for choice in _choices(part)]
