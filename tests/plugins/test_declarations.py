"""Functions declare their options by a structure or one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest

from serve_eval.plugins.declarations import (
    REQUIRED,
    Option,
    find_structure,
    list_fields,
    read_options,
)
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class _Place:
    host: Annotated[str, Setting("Where.")] = "here"
    port: Annotated[int | None, Setting("Which door.")] = None


@dataclass(frozen=True, kw_only=True)
class _Limits:
    wait_s: Annotated[float, Setting("How long.")] = 1.0
    retries: int = 0


@dataclass(frozen=True, kw_only=True)
class _Whole(_Place, _Limits):
    model: Annotated[str, Setting("What.")]
    words: Annotated[list[str], Setting("How.")] = field(default_factory=list)
    wait_s: Annotated[float, Setting("How long.")] = 5.0


class _Struct(msgspec.Struct, kw_only=True, rename={"inner": "outer"}):
    inner: Annotated[int, Setting("A number."), msgspec.Meta(gt=0)] = 3
    words: list[str] = []


def _by_structure(context: object, options: _Whole) -> None: ...
def _by_keyword(
    context: object, *, model: Annotated[str, Setting("What.")], words: list[str] | None = None
) -> None: ...
def _by_any(context: object, **options: object) -> None: ...
def _by_mapping(context: object, options: dict[str, Any]) -> None: ...
def _by_optional(context: object, *, options: _Whole) -> None: ...


def _by_described(_: object, options: Annotated[_Whole, "of a launcher"]) -> None: ...


def test_own_fields_come_first_and_a_changed_default_keeps_its_place() -> None:
    assert list(read_options(_by_structure).values()) == [
        Option(path="model", hint=str, default=REQUIRED, meaning="What."),
        Option(path="words", hint=list[str], default=[], meaning="How."),
        Option(path="host", hint=str, default="here", meaning="Where."),
        Option(path="port", hint=int | None, default=None, meaning="Which door."),
        Option(path="wait_s", hint=float, default=5.0, meaning="How long."),
        Option(path="retries", hint=int, default=0, meaning=""),
    ]


def test_keyword_parameters_are_options_too() -> None:
    assert list(read_options(_by_keyword).values()) == [
        Option(path="model", hint=str, default=REQUIRED, meaning="What."),
        Option(path="words", hint=list[str] | None, default=None),
    ]
    assert [option.required for option in read_options(_by_keyword).values()] == [True, False]


def test_a_struct_has_the_names_of_plans_and_keeps_its_bounds() -> None:
    inner, words = list_fields(_Struct)
    assert (inner.path, inner.default, inner.meaning) == ("outer", 3, "A number.")
    assert (words.path, words.default) == ("words", [])
    assert msgspec.convert(1, inner.hint) == 1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(0, inner.hint)


@pytest.mark.parametrize(
    ("function", "structure"),
    [
        (_by_structure, _Whole),
        (_by_described, _Whole),
        (_by_keyword, None),
        (_by_any, None),
        (_by_mapping, None),
        (_by_optional, None),
    ],
)
def test_a_structure_is_the_parameter_options(function: Any, structure: type | None) -> None:
    assert find_structure(function) is structure
