"""Read the options that a function declares.

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
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from serve_eval.plugins.setting import Setting

PARAMETER = "options"
"""The parameter with which a function takes its options as one structure."""
REQUIRED = inspect.Parameter.empty
"""The default of an option without a default, and the type of an option without a type."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
