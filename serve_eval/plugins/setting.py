"""Describe one option where it is declared: its meaning, its flags, its key in a plan file and how
its text is read.

A structure of options is a frozen dataclass whose fields are annotated:

    @dataclass(frozen=True, kw_only=True)
    class SendingOptions:
        rate_limit: Annotated[float | None, Setting("At most N requests per second.", key="limits.rate_limit")] = None

The command line derives flags, variables and help from it, and the plan file its keys with their
types.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal

Variable = Literal["run", "always", "never"]
"""Commands that read SERVE_EVAL_<FLAG> for an option: `run` alone, all of them, or none."""

SAME: Any = object()
"""The plan file takes the type that the flag takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of an option. What is left out follows from the name and the type of its
    field.

    `key` is the place in a plan file, such as "limits.order"; `in_file` is the type there (None: no
    plan file has it). `parse` turns the value of the flag into that of the plan. `refused` makes
    the option an error with this message and hint, for what commands of the past took.
    """

    help: str
    flags: tuple[str, ...] = field(default=(), kw_only=True)
    metavar: str = field(default="", kw_only=True)
    key: str = field(default="", kw_only=True)
    in_file: Any = field(default=SAME, kw_only=True)
    parse: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    variable: Variable = field(default="run", kw_only=True)
    refused: tuple[str, str] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A field of a structure of options: its name, its type without None, its default and its
    description.
    """

    name: str
    kind: Any
    default: Any
    setting: Setting

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags, the long one first."""
        return self.setting.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return "SERVE_EVAL_" + self.flags[0].partition("/")[0].removeprefix("--").upper().replace(
            "-", "_"
        )

    @property
    def key(self) -> str:
        """Return the place in a plan file; the last part is the name among the settings of a
        command.
        """
        return self.setting.key or self.name

    @property
    def repeated(self) -> bool:
        """Return whether the option may be given several times."""
        return typing.get_origin(self.kind) is list


@cache
def list_declared(structure: type) -> tuple[Declared, ...]:
    """Return the options of a structure in their order."""
    hints = typing.get_type_hints(structure, include_extras=True)
    found = []
    for one in fields(structure):
        kind, setting = typing.get_args(hints[one.name])
        found.append(
            Declared(name=one.name, kind=_without_none(kind), default=one.default, setting=setting)
        )
    return tuple(found)


def _without_none(kind: Any) -> Any:
    found = [part for part in typing.get_args(kind) if part is not type(None)]
    return found[0] if type(None) in typing.get_args(kind) else kind
