"""Judge LLM endpoints in pytest: a class of tests, fixtures and a marker (docs/ci.md).

pytest imports `plugin.py` at each start. Each name below is imported on first use, so that a suite
without such tests does not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.pytest_plugin.endings import AccuracyNotMeasured as AccuracyNotMeasured
    from serve_eval.pytest_plugin.endings import AccuracyRegression as AccuracyRegression
    from serve_eval.pytest_plugin.endings import AccuracyUndecided as AccuracyUndecided
    from serve_eval.pytest_plugin.endings import AccuracyWarning as AccuracyWarning
    from serve_eval.pytest_plugin.evaluator import AccuracyTests as AccuracyTests
    from serve_eval.pytest_plugin.evaluator import Evaluator as Evaluator

__all__ = [
    "AccuracyNotMeasured",
    "AccuracyRegression",
    "AccuracyTests",
    "AccuracyUndecided",
    "AccuracyWarning",
    "Evaluator",
]

_PLACES = {"AccuracyTests": "evaluator", "Evaluator": "evaluator"}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    place = f"{__name__}.{_PLACES.get(name, 'endings')}"
    return globals().setdefault(name, getattr(import_module(place), name))
