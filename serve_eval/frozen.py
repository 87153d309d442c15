"""Make classes immutable records: dataclasses that are frozen and have slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Record = TypeVar("Record")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def freeze(cls: type[Record]) -> type[Record]:
    """Make a class a frozen dataclass with slots and with fields by name only."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def freeze_places(cls: type[Record]) -> type[Record]:
    """Make a class a frozen dataclass with slots, whose fields have places, too."""
    return dataclass(frozen=True, slots=True)(cls)
