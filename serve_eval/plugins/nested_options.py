"""Handle options below other options, by dotted paths such as `context_servers.tp`.

A launcher takes some of its options as a structure with fields. This module finds the paths of a
plan or of --set that do not exist, and suggests those that are similar.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from serve_eval.plugins.declarations import Option, is_structure, list_fields, read_options

LIKE = 0.6
"""Least similarity of a suggested path. The last name counts more than the part before it."""
OF_NAME = 0.6
AS_LIKE = 0.05
"""Largest difference in similarity from the best suggestion to further ones."""
SHOWN = 3


def options(function: Callable[..., Any]) -> list[Option]:
    """Return the options of a function, each followed by its nested options."""
    return [one for option in read_options(function).values() for one in _with_below(option)]


def struct_of(hint: Any) -> type | None:
    """Return the structure that a type is, alone or in a union with None."""
    return next((part for part in (hint, *_parts(hint)) if is_structure(part)), None)


def unknown(hint: Any, value: object, path: str) -> Iterator[str]:
    """Yield the paths in a value that its structure does not have."""
    if (structure := struct_of(hint)) is None or not isinstance(value, Mapping):
        return
    fields = {field.path: field.hint for field in list_fields(structure)}
    for name, below in value.items():
        if name in fields:
            yield from unknown(fields[name], below, f"{path}.{name}")
        else:
            yield f"{path}.{name}"


def perhaps(path: str, value: object, known: Mapping[str, Any], where: str) -> str:
    """Return " Did you mean X?" for an unknown path and its value.

    Returns "" if no path is similar, or if none of them is nested.
    """
    found: list[str] = []
    for leaf in _leaves(path, value):
        scores = {one: _like(leaf, one) for one in known}
        best = max(scores.values(), default=0.0)
        if best >= LIKE:
            found += sorted(
                (one for one, score in scores.items() if score > best - AS_LIKE),
                key=lambda o: -scores[o],
            )
    found = list(dict.fromkeys(found))[:SHOWN]
    if not any("." in one for one in (path, *found)) or not found:
        return ""
    return f" Did you mean {' or '.join(f'{where}.{one}'.lstrip('.') for one in found)}?"


def _with_below(option: Option) -> list[Option]:
    structure = struct_of(option.hint)
    below = [] if structure is None else list_fields(structure)
    return [
        option,
        *(
            one
            for field in below
            for one in _with_below(replace(field, path=f"{option.path}.{field.path}"))
        ),
    ]


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union."""
    return (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    )


def _leaves(path: str, value: object) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [leaf for name, below in value.items() for leaf in _leaves(f"{path}.{name}", below)]
    return [path]


def _like(given: str, known: str) -> float:
    (before, _, name), (known_before, _, known_name) = given.rpartition("."), known.rpartition(".")
    if (same := _ratio(name, known_name)) < LIKE:
        return 0.0
    return OF_NAME * same + (1 - OF_NAME) * _ratio(before, known_before)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()
