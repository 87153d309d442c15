"""Read what was expected of an answer as people and scorers read it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from serve_eval.report.summary import name_expected
from serve_eval.schema import is_mutable
from serve_eval.scorers import numeric

_NUMBER = re.compile(r"[-+]?\$?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?\.?")
"""A number as a target has it, with or without commas between thousands."""


def read_expected(task: str, target: str) -> str:
    """Return the expected answer of a task's target: a text as it is, other values as JSON."""
    named = name_expected(task, target)
    if not (is_mutable(task) and target.startswith("{")):
        return named
    value = msgspec.json.decode(named)
    if isinstance(value, Mapping) and "answer" in value:
        value = value["answer"]
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def is_number(text: str) -> bool:
    """Return True for one number. Commas of other texts separate words or fields."""
    return _NUMBER.fullmatch(text.strip()) is not None


def fold(text: str, expected: str) -> str:
    """Return a text in the form in which it is compared with what was expected.

    Commas and dollar signs are dropped only if a number was expected.
    """
    return numeric.normalise(text.strip()) if is_number(expected) else text.strip().lower()
