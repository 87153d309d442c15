"""Describe one option where it is declared: its meaning, flags, plan key and parser.

A structure of options is a frozen dataclass whose fields are annotated:

    @dataclass(frozen=True, kw_only=True)
    class SendingOptions:
        rate_limit: Annotated[
            float | None, Setting("At most N requests per second.", "N", "limits.rate_limit")
        ] = None

The command line derives flags, variables and help from it, and the plan file its keys and types.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from serve_eval.frozen import freeze

Variable = Literal["run", "always", "never"]
"""The commands that read SERVE_EVAL_<FLAG> for an option: `run` only, all of them, or none."""

SAME: Any = object()
"""The plan file takes the same type as the flag."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of an option.

    Values that are left out follow from the name and type of the field. `key` is the place in a
    plan file, such as "limits.order"; `in_file` is the type there (None: not allowed in a plan
    file). `parse` converts the value of the flag to that of the plan. Without a `flag`, the option
    is set by --set KEY=VALUE, by its variable or in a plan. `refused` makes the option an
    error with this message and hint, for options of earlier versions.
    """

    help: str
    metavar: str = ""
    key: str = ""
    _: KW_ONLY
    flags: tuple[str, ...] = ()
    in_file: Any = SAME
    parse: Callable[[Any], Any] | None = None
    flag: bool = True
    variable: Variable = "run"
    refused: tuple[str, str] | None = None


@freeze
class Declared:
    """A field of a structure of options: name, type without None, default and description.

    `below` is the section of a plan file that holds all keys of the structure ("": none).
    `command` is the command whose own option it is, which --set COMMAND.OPTION=VALUE sets too ("":
    none).
    """

    name: str
    kind: Any
    default: Any
    setting: Setting
    below: str = ""
    command: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags, with the long one first."""
        return self.setting.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return "SERVE_EVAL_" + self.flags[0].partition("/")[0].removeprefix("--").upper().replace(
            "-", "_"
        )

    @property
    def key(self) -> str:
        """The key in a plan file; its last part is the name among the settings of a command."""
        return self.setting.key or self.name

    @property
    def place(self) -> str:
        """The whole key, as --set takes it: in a plan file, or below the name of the command."""
        if self.command:
            return f"{self.command}.{self.name}"
        return f"{self.below}.{self.key}" if self.below else self.key

    @property
    def repeated(self) -> bool:
        """True if the option may be given several times."""
        return typing.get_origin(self.kind) is list


@cache
def list_declared(structure: type) -> tuple[Declared, ...]:
    """Return the options of a structure in their order.

    `plan_only` of a structure names those that have no flag there.
    """
    hints = typing.get_type_hints(structure, include_extras=True)
    found = []
    for one in fields(structure):
        kind, setting = typing.get_args(hints[one.name])
        if one.name in getattr(structure, "plan_only", ()):
            setting = replace(setting, flag=False)
        found.append(
            Declared(
                name=one.name,
                kind=_without_none(kind),
                default=one.default,
                setting=setting,
                below=getattr(structure, "below", ""),
                command=getattr(structure, "command", ""),
            )
        )
    return tuple(found)


def _without_none(kind: Any) -> Any:
    found = [part for part in typing.get_args(kind) if part is not type(None)]
    return found[0] if type(None) in typing.get_args(kind) else kind
