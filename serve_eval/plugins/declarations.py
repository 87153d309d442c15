"""Read and check the options that a function declares, also nested ones.

A function declares them as the fields of one structure, or as keyword-only parameters. A structure
is a dataclass or a msgspec.Struct. If the parameter `options` has such a type, it holds all options
of the function:

    @dataclass(frozen=True, kw_only=True)
    class NeighbourOptions:
        file: Annotated[str, Setting("A file with the address.")]

    async def launch(
        context: LaunchContext, options: NeighbourOptions
    ) -> AsyncIterator[Endpoint]: ...

Otherwise its keyword-only parameters are the options. In both forms, a type may be Annotated with a
Setting.

A launcher takes some of its options as a structure with fields. This module finds the paths of a
plan or of --set that do not exist, and suggests those that are similar.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

PARAMETER = "options"
"""The parameter with which a function takes its options as one structure."""
REQUIRED = inspect.Parameter.empty
"""The default of an option without a default, and the type of an option without a type."""


@freeze
class Option:
    """An option: its dotted path, type, default and meaning.

    The default is REQUIRED if there is none; the meaning is "" if it is not documented.
    """

    path: str
    hint: Any
    default: Any
    meaning: str = ""

    @property
    def required(self) -> bool:
        """True if the option has no default."""
        return self.default is REQUIRED


def is_structure(hint: Any) -> bool:
    """Return True if a type is a structure, whose fields are nested options."""
    return isinstance(hint, type) and (
        dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)
    )


_TYPES: MutableMapping[Any, Mapping[str, Any]] = WeakKeyDictionary()
"""The types of functions and structures that were read before: a run needs them many times."""


def _read_types(declared: Any) -> Mapping[str, Any]:
    """Return the types of a function or structure by name, with their Settings.

    Raises NameError for an unresolved type.
    """
    if (known := _TYPES.get(declared)) is None:
        known = _TYPES[declared] = typing.get_type_hints(declared, include_extras=True)
    return known


def find_structure(function: Callable[..., Any]) -> type | None:
    """Return the structure in which a function takes its options; None for keyword-only ones."""
    parameter = inspect.signature(function).parameters.get(PARAMETER)
    if parameter is None or parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return None
    hint: Any = _read_types(function).get(PARAMETER)
    if typing.get_origin(hint) is typing.Annotated:
        hint = hint.__origin__
    return hint if is_structure(hint) else None


def read_options(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a function by name. Raises NameError for an unresolved type."""
    if (structure := find_structure(function)) is not None:
        return {option.path: option for option in list_fields(structure)}
    hints = _read_types(function)
    return {
        name: _describe(name, hints.get(name, REQUIRED), parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def list_fields(structure: type) -> list[Option]:
    """Return the fields of a structure as options: its own before those of its bases.

    A field that a structure redefines, to change its default, keeps its position in the base.
    """
    hints = _read_types(structure)
    defaults = (
        _read_struct_defaults(structure)
        if issubclass(structure, msgspec.Struct)
        else _read_defaults(structure)
    )
    declared = [
        name
        for one in structure.__mro__
        for name in inspect.get_annotations(one)
        if name in defaults
    ]
    ordered = reversed(dict.fromkeys(reversed(declared)))
    return [_describe(defaults[name][0], hints[name], defaults[name][1]) for name in ordered]


def _read_defaults(structure: Any) -> dict[str, tuple[str, Any]]:
    """Return the key in a plan and the default of each field of a dataclass."""
    return {
        one.name: (one.name, _read_default(one.default, one.default_factory, dataclasses.MISSING))
        for one in dataclasses.fields(structure)
    }


def _read_struct_defaults(structure: Any) -> dict[str, tuple[str, Any]]:
    """Return the key in a plan and the default of each field of a struct.

    The key is the name of the field unless the struct renames it.
    """
    return {
        one.name: (
            one.encode_name,
            _read_default(one.default, one.default_factory, msgspec.NODEFAULT),
        )
        for one in msgspec.structs.fields(structure)
    }


def _read_default(default: Any, factory: Any, missing: Any) -> Any:
    if factory is not missing:
        return factory()
    return REQUIRED if default is missing else default


def _describe(path: str, hint: Any, default: Any) -> Option:
    """Separate the type of an option from its Setting."""
    if typing.get_origin(hint) is not typing.Annotated:
        return Option(path=path, hint=hint, default=default)
    kind, *notes = typing.get_args(hint)
    meanings = [note.help for note in notes if isinstance(note, Setting)]
    # A bound of msgspec, such as Meta(gt=0), stays with the type; msgspec ignores a Setting.
    others = tuple(note for note in notes if not isinstance(note, Setting))
    return Option(
        path=path,
        hint=typing.Annotated[(kind, *others)] if others else kind,
        default=default,
        meaning=meanings[0] if meanings else "",
    )


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


BESIDE = {"serve_eval.launchers": ("commands",)}
"""Further functions that a file must have: those of a launcher return what it would start."""
HANDED = {
    "serve_eval.tasks": (0, 1),
    "serve_eval.scorers": (0,),
    "serve_eval.launchers": (1,),
    "serve_eval.verdicts.rules": (4,),
}
"""Allowed numbers of arguments before the options of a function; a task with one is a family."""


def check_shape(folder: str, made: Callable[..., Any], place: str) -> None:
    """Raise PlanError for an external function with another shape than ours."""
    try:
        untyped = [name for name, option in read_options(made).items() if option.hint is REQUIRED]
    except (NameError, TypeError, AttributeError) as error:
        raise PlanError(f"{place}: the types of its options cannot be read: {error}") from error
    if untyped:
        raise PlanError(f"{place}: annotate the types of its options: {', '.join(untyped)}")
    if not any(_takes(made, count) for count in HANDED[folder]):
        raise PlanError(
            f"{place}: must take {' or '.join(map(str, HANDED[folder]))} arguments before"
            f" its options, but its signature is {inspect.signature(made)}",
            hint="docs/extending.md shows the signatures of all four kinds.",
        )
    lacking = [
        name for name in BESIDE.get(folder, ()) if not hasattr(sys.modules[made.__module__], name)
    ]
    if lacking:
        raise PlanError(f"{place}: its file has no function {', '.join(lacking)}")


def check_options_named(made: Callable[..., Any], place: str) -> None:
    """Raise PlanError for a task or a scorer with a default before its keyword-only options."""
    given = inspect.signature(made).parameters.values()
    usual = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wrong = [one.name for one in given if one.kind in usual and one.default is not one.empty]
    if wrong:
        code = getattr(inspect.unwrap(made), "__code__", None)
        at = place if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        raise PlanError(
            f"{at}: {wrong[0]} has a default, so it is an option, but only parameters behind `*`"
            f" are options: write `*, {wrong[0]}`"
        )


def _takes(made: Callable[..., Any], count: int) -> bool:
    names = read_options(made) if find_structure(made) is None else [PARAMETER]
    try:
        inspect.signature(made).bind(*[None] * count, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
