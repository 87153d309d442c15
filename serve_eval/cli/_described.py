"""Describe one task, scorer, launcher or verdict rule with all of its options, in 80 columns."""

from __future__ import annotations

import re
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Any

from serve_eval.plugins import extensions, registry
from serve_eval.plugins.declarations import Option, options, struct_of
from serve_eval.plugins.values import LAUNCHERS, load_launcher

WIDTH = 80
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
PLURAL = re.compile(r"\b(number|text)\b")
SEVERAL = {list: "list", dict: "mapping"}


def describe_plugin(package: str, name: str) -> list[str]:
    """Return the lines that describe a plugin.

    They hold its summary, its origin, and the type, default and meaning of each option. Raises
    PlanError for a plugin that cannot be used.
    """
    function = registry.function(package, name)
    meanings = load_launcher(name).meanings if package == LAUNCHERS else {}
    return [*describe_origin(package, name), *list_options(function, meanings)]


def describe_origin(package: str, name: str) -> list[str]:
    """Return a plugin's name and summary, and its place if it is not part of serve-eval."""
    lines = wrap(f"{name}: {registry.summary(package, name)}", "", "    ")
    return [*lines, *(f"    from {origin.place}" for origin in extensions.find(package, name))]


def list_options(function: Callable[..., Any], meanings: Mapping[str, str]) -> list[str]:
    """Return the lines that describe the options of a function.

    `meanings` holds what the options do not say themselves.
    """
    lines = []
    for option in options(function):
        nested = struct_of(option.hint) is not None
        told = (
            "has its own options, listed below"
            if nested
            else f"{_kind(option.hint)}; {_default(option)}"
        )
        lines += wrap(f"{option.path} ({told})", "  ", "      ")
        if found := option.meaning or meaning(option.path, meanings):
            lines += wrap(found, "      ", "      ")
    return lines


def meaning(path: str, meanings: Mapping[str, str]) -> str:
    """Return the meaning of an option, or "" if it is not documented.

    The meaning of a nested option may also be stored under its bare name.
    """
    below = path
    while below not in meanings and "." in below:
        below = below.partition(".")[2]
    return meanings.get(below, "")


def wrap(text: str, first: str = "", others: str = "") -> list[str]:
    """Return a text as lines of at most WIDTH columns."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _kind(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(str, parts))
    if origin in SEVERAL:
        of = [PLURAL.sub(r"\1s", _kind(parts[-1]))] if parts and parts[-1] is not Any else []
        return " of ".join([SEVERAL[origin], *of])
    if parts:
        several = sorted((part for part in parts if part is not type(None)), key=_is_list)
        return " or ".join(dict.fromkeys(map(_kind, several)))
    return WORDS.get(hint) or SEVERAL.get(hint) or str(getattr(hint, "__name__", hint))


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _default(option: Option) -> str:
    value = option.default
    if option.required:
        return "required"
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{name}: {one}" for name, one in value.items()) + "}"
            if value
            else "empty"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]" if value else "empty"
    return str(value) or "empty"
