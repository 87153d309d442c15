"""Convert the values of options without pydantic where their meaning is clear.

typer converts each value by pydantic. Importing it, and preparing a converter for each option of a
command, takes a quarter of the processor time of a start. All values that are not clear are left to
typer.
"""

from __future__ import annotations

import os
import re
import typing
from pathlib import Path
from typing import Any

import typer

_NUMBERS: dict[Any, re.Pattern[str]] = {
    int: re.compile(r"-?[0-9]{1,15}"),
    float: re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?"),
}
"""Spellings that int() and float() read as pydantic does."""


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number"}
"""Types in the words of an error, in place of pydantic's."""


class NotClear(Exception):
    """Only typer knows the meaning of a value, or its error."""


class ClearValue:
    """The converter of one parameter, in place of typer's own."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value as the type of its parameter, as typer would."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            return _convert(value, self._kind)
        except NotClear:
            param._runtime_param = None
            try:
                return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
            except typer.BadParameter as error:
                if (word := _name_kind(self._kind)) is None:
                    raise
                told = f"expected {word}, not {value!r}"
                raise typer.BadParameter(told, ctx=ctx, param=param) from error
            finally:
                param._runtime_param = self  # a value of a variable is converted twice


def convert_clear_values(parameters: list[Any]) -> list[Any]:
    """Let parameters convert clear values themselves, and return them.

    Nothing changes in a typer that prepares its converters in another way.
    """
    for one in parameters:
        described = getattr(one, "type_descriptor", None)
        if described is not None and getattr(one, "_runtime_param", one) is None:
            info = described.parameter_info
            if described.file_annotation is None and not _is_restricted(info):
                one._runtime_param = ClearValue(described.annotation)
    return parameters


def _name_kind(kind: Any) -> str | None:
    """Return the words for a number, which may be left out, or None for any other type."""
    inner = [one for one in typing.get_args(kind) if one is not type(None)]
    if typing.get_origin(kind) is not list and len(inner) == 1:
        kind = inner[0]
    return _WORDS.get(kind)


def _is_restricted(info: Any) -> bool:
    """Return True if the option has a parser or limits of its own."""
    return (
        any(one is not None for one in (info.parser, info.min, info.max, info.path_type))
        or any((info.exists, info.writable, info.resolve_path, info.allow_dash))
        or not all((info.file_okay, info.dir_okay))
    )


def _convert(value: Any, kind: Any) -> Any:
    """Return a value as this type. Raises NotClear for any other than a plain one."""
    if typing.get_origin(kind) is list:
        if not isinstance(value, list | tuple):
            raise NotClear
        [inner] = typing.get_args(kind)
        return [_convert(one, inner) for one in value]
    if type(value) is kind and kind is not Path:
        return value
    if kind is Path and isinstance(value, str | Path):
        path = Path(value)
        if os.access(path, os.R_OK) or not os.path.exists(path):  # noqa: PTH110 - never raises
            return path
    elif kind in _NUMBERS and isinstance(value, str) and _NUMBERS[kind].fullmatch(value):
        return kind(value)
    raise NotClear
