"""Convert the keys of a plan file and the settings of a command into typed values.

All problems are collected. The keys and their types are those of the options (see options.py). The
sections are nouns of the schema.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from serve_eval.client import connection
from serve_eval.plan.options import SAMPLING_SEED, keys_in_file, list_protocol_fields
from serve_eval.plan.shared_options import SPEC
from serve_eval.plugins import registry
from serve_eval.plugins.closest import find_misspelt
from serve_eval.plugins.setting import SAME
from serve_eval.schema import AccuracySpec, Connection, Limits, Spec

TASKS, LAUNCHERS, VERDICTS = "serve_eval.tasks", "serve_eval.launchers", "serve_eval.verdicts.rules"
SECTIONS: dict[str, type] = {
    "accuracy_spec": AccuracySpec,
    "connection": Connection,
    "limits": Limits,
}
"""Keys that hold a mapping of fields."""


def scalar_kinds() -> dict[str, Any]:
    """Return the keys of a plan file that hold one value or a list, with their types."""
    found = {
        key: option.kind if option.setting.in_file is SAME else option.setting.in_file
        for key, option in keys_in_file()
        if "." not in key and option.setting.in_file is not SPEC
    }
    return {**found, "protocol": dict[str, Any]}


_SCALARS = scalar_kinds()
_SPECS = ("tasks", "launcher", "verdict")
KEYS = (*_SCALARS, *SECTIONS, *_SPECS)
"""Every key of a plan file."""


class Problems:
    """Collect problems, each with its line in the file if there is one."""

    def __init__(self, line: Callable[..., str]) -> None:
        self.found: list[str] = []
        self._line = line

    def add(self, path: tuple[str | int, ...], message: str) -> None:
        """Add the problem at a path of the plan."""
        shown = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(
            "."
        )
        self.found.append(f"{self._line(*path)}{shown}: {message}")


def scalars(
    file: Mapping[str, Any], settings: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """Return the converted values that are neither sections nor names with options.

    Flags override the file.
    """
    for key in file:
        if key not in KEYS:
            secret = connection.looks_secret(str(key)) and not _find_misspelt(str(key))
            message = f"unknown key.{_suggest(str(key), file[key])}"
            problems.add((key,), connection.KEY_ADVICE if secret else message)
    values: dict[str, Any] = {}
    for name, kind in _SCALARS.items():
        raw = settings.get(name, file.get(name))
        if name == "samples" and isinstance(raw, int):
            message = f"expected ids of samples, not {raw}; to ask any {raw} samples, use limit"
            problems.add((name,), message)
        elif raw is not None:
            _convert(raw, kind, (name,), values, problems)
    return values


def _suggest(key: str, value: Any) -> str:
    """Return the key that was probably meant; options of the protocol are below its key."""
    field = "seed" if key == SAMPLING_SEED else _find_misspelt(key) or key
    if field in list_protocol_fields():
        return f" Did you mean `protocol: {{{field}: {value}}}`?"
    return registry.nearest(key, KEYS)


def _find_misspelt(key: str) -> str:
    """Return the key of a plan or of its protocol that this one misspells, or ""."""
    return find_misspelt(key, (*KEYS, *list_protocol_fields()))


def section(
    name: str, kind: type, file: Mapping[str, Any], settings: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """Return the given fields of a section, converted. Flags override the file."""
    given = file.get(name) or {}
    if not isinstance(given, Mapping):
        problems.add((name,), "expected a mapping")
        given = {}
    hints = typing.get_type_hints(kind)
    for key in given:
        if key not in hints:
            secret = name == "connection" and connection.looks_secret(str(key))
            problems.add(
                (name, key),
                (
                    connection.KEY_ADVICE
                    if secret
                    else f"unknown key.{registry.nearest(str(key), hints)}"
                ),
            )
    found: dict[str, Any] = {}
    for field, hint in hints.items():
        raw = settings.get(field, given.get(field))
        if raw is not None:
            _convert(raw, hint, (name, field), found, problems)
    return found


def spec_of(raw: Any, folder: str, path: tuple[str | int, ...], problems: Problems) -> Spec:
    """Read `name`, `{name: {options}}` or `{name: NAME, option: value}`."""
    if isinstance(raw, str):
        return Spec(name=raw)
    if isinstance(raw, Mapping) and isinstance(raw.get("name"), str):
        return Spec(
            name=raw["name"], options={key: value for key, value in raw.items() if key != "name"}
        )
    if isinstance(raw, Mapping) and len(raw) == 1:
        name, options = next(iter(raw.items()))
        if options is None or isinstance(options, Mapping):
            return Spec(name=str(name), options=dict(options or {}))
    problems.add(path, "expected a name, or a name with a mapping of options")
    return Spec(name=registry.names(folder)[0])


def tasks_of(
    in_file: Any, chosen: list[str] | None, problems: Problems, *, needed: bool
) -> list[Spec]:
    """Return the tasks of the file, or the chosen tasks with their options in the file."""
    if in_file is not None and not isinstance(in_file, list):
        problems.add(("tasks",), "expected a list")
        in_file = []
    listed = [spec_of(raw, TASKS, ("tasks", i), problems) for i, raw in enumerate(in_file or [])]
    if chosen is not None:
        by_name = {spec.name: spec for spec in listed}
        listed = [by_name.get(name, Spec(name=name)) for name in chosen]
    if needed and not listed and not problems.found:
        advice = "for example --tasks gsm8k. All: serve-eval data list tasks"
        problems.add(("tasks",), f"name at least one task, {advice}")
    names = [spec.name for spec in listed]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(("tasks",), f"{name} is listed twice")
    return listed


def _convert(
    raw: Any, kind: Any, path: tuple[str | int, ...], into: dict[str, Any], problems: Problems
) -> None:
    try:
        into[str(path[-1])] = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        choices = _choices(kind)
        wrong_word = choices and "Invalid enum value" in str(error)
        problems.add(
            path,
            f"expected {choices}, not {raw!r}"
            if wrong_word
            else f"{error}{choices and f'; expected {choices}'}",
        )


def _choices(kind: Any) -> str:
    """Return the values of a field that takes only some words, and perhaps a number."""
    words = [
        word
        for part in (kind, *typing.get_args(kind))
        for word in typing.get_args(part)
        if isinstance(word, str)
    ]
    words += [word for word in typing.get_args(kind) if isinstance(word, str)]
    numbers = ["a number"] if int in typing.get_args(kind) else []
    return " or ".join((*numbers, *dict.fromkeys(words))) if words else ""
