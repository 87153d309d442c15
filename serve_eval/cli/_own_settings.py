"""Read --set COMMAND.OPTION=VALUE: options of a command itself, such as watch.passes=4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from serve_eval.errors import PlanError
from serve_eval.plugins.closest import nearest
from serve_eval.plugins.setting import Declared

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
