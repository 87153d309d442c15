"""Check that an external function has the shape of ours."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plugins.declarations import PARAMETER, REQUIRED, find_structure, read_options

BESIDE = {"serve_eval.launchers": ("commands",)}
"""Further functions that a file must have: those of a launcher return what it would start."""
HANDED = {
    "serve_eval.tasks": (0, 1),
    "serve_eval.scorers": (0,),
    "serve_eval.launchers": (1,),
    "serve_eval.verdicts.rules": (4,),
}
"""Allowed numbers of arguments before the options of a function; a task with one is a family."""


def check_shape(folder: str, made: Callable[..., Any], place: str) -> None:
    """Raise PlanError for an external function with another shape than ours."""
    try:
        untyped = [name for name, option in read_options(made).items() if option.hint is REQUIRED]
    except (NameError, TypeError, AttributeError) as error:
        raise PlanError(f"{place}: the types of its options cannot be read: {error}") from error
    if untyped:
        raise PlanError(f"{place}: annotate the types of its options: {', '.join(untyped)}")
    if not any(_takes(made, count) for count in HANDED[folder]):
        raise PlanError(
            f"{place}: must take {' or '.join(map(str, HANDED[folder]))} arguments before"
            f" its options, but its signature is {inspect.signature(made)}",
            hint="docs/extending.md shows the signatures of all four kinds.",
        )
    lacking = [
        name for name in BESIDE.get(folder, ()) if not hasattr(sys.modules[made.__module__], name)
    ]
    if lacking:
        raise PlanError(f"{place}: its file has no function {', '.join(lacking)}")


def check_options_named(made: Callable[..., Any], place: str) -> None:
    """Raise PlanError for a task or a scorer with a default before its keyword-only options."""
    given = inspect.signature(made).parameters.values()
    usual = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wrong = [one.name for one in given if one.kind in usual and one.default is not one.empty]
    if wrong:
        code = getattr(inspect.unwrap(made), "__code__", None)
        at = place if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        raise PlanError(
            f"{at}: {wrong[0]} has a default, so it is an option, but only parameters behind `*`"
            f" are options: write `*, {wrong[0]}`"
        )


def _takes(made: Callable[..., Any], count: int) -> bool:
    names = read_options(made) if find_structure(made) is None else [PARAMETER]
    try:
        inspect.signature(made).bind(*[None] * count, **dict.fromkeys(names))
    except TypeError:
        return False
    return True
