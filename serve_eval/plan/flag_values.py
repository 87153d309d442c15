"""Convert the values of flags and environment variables into the values of a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from serve_eval.errors import PlanError

Times = int | Literal["usual"]
USUAL: Literal["usual"] = "usual"
"""The word for the number of repeats with which models are usually compared by a task."""


def names_of(given: Sequence[str] | None) -> list[str] | None:
    """Return the comma-separated names of all uses of an option, or None if there are none."""
    names = [name.strip() for text in given or () for name in text.split(",")]
    return [name for name in names if name] or None


def read_expected(given: Sequence[str] | None) -> dict[str, bool] | None:
    """Return the expectations of all uses of --expect; NAME=false takes one back.

    Raises PlanError for another value than true or false.
    """
    found: dict[str, bool] = {}
    for text in names_of(given) or ():
        name, equals, value = text.partition("=")
        if equals and value not in ("true", "false"):
            raise PlanError(f"--expect: expected {name}, {name}=true or {name}=false, not {text!r}")
        found[name.strip()] = value != "false"
    return found or None


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Return headers from lines such as "Name: value". Raises PlanError for any other line."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise PlanError("--header: expected 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object of `protocol.extra_body`. Raises PlanError for anything else."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PlanError(f"protocol.extra_body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise PlanError("protocol.extra_body: expected a JSON object, such as '{\"top_k\": 1}'")
    return value


def number_or_word(text: str) -> int | str:
    """Return the text as an integer if it is one, else the text."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def absolute(path: str | None) -> str | None:
    """Return the absolute path, or None for an empty or missing path."""
    return str(Path(path).expanduser().absolute()) if path else None


def absolute_all(paths: Sequence[str]) -> list[str]:
    """Return the absolute paths."""
    return [str(Path(path).expanduser().absolute()) for path in paths]


def margin_of_verdict(points: float) -> list[str]:
    """Return the --set value that --margin stands for."""
    return [f"verdict.margin={points}"]
