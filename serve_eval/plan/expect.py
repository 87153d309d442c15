"""Read which parts of the path a plan expects: the key `expect`, and the flag of that name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.schema import PathClaim


def merge_expected(file: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the expectations of the file below those of the flag."""
    given, flags = file.get("expect"), settings.get("expect")
    if not isinstance(given, Mapping) or not isinstance(flags, Mapping):
        return dict(settings)
    return {**settings, "expect": {**given, **flags}}


def list_problems(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each unknown name with a message."""
    known = [claim.value for claim in PathClaim]
    return [
        (name, f"unknown part of a path.{registry.nearest(name, known)} Known: {', '.join(known)}")
        for name in names
        if name not in known
    ]


def check_expected(expect: Mapping[str, bool]) -> None:
    """Raise PlanError for an unknown name in the expectations of a plan."""
    if problems := list_problems(expect):
        raise PlanError([f"expect.{name}: {message}" for name, message in problems])
