"""Judge LLM endpoints in pytest: a class of tests, fixtures and a marker (docs/pytest.md).

pytest loads `plugin.py` at each start, so nothing here imports more than pytest before a test asks
for an evaluation.
"""

from serve_eval.pytest_plugin.accuracy_tests import AccuracyTests
from serve_eval.pytest_plugin.endings import (
    AccuracyNotMeasured,
    AccuracyRegression,
    AccuracyUndecided,
)
from serve_eval.pytest_plugin.evaluator import Evaluator

__all__ = [
    "AccuracyNotMeasured",
    "AccuracyRegression",
    "AccuracyTests",
    "AccuracyUndecided",
    "Evaluator",
]
