"""The base class of tests in the style of TensorRT-LLM's accuracy suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from serve_eval.pytest_plugin.asked import LauncherOption, TaskOption
from serve_eval.pytest_plugin.evaluator import Evaluator

if TYPE_CHECKING:
    from serve_eval.pytest_plugin.compared import SideOption
    from serve_eval.schema import Comparison, Report


class AccuracyTests:
    """Hold the tests of one model.

        class TestLlama3_1_8B(AccuracyTests):
            MODEL_NAME = "meta-llama/Llama-3.1-8B"
            MODEL_PATH = "/models/Llama-3.1-8B"
            LAUNCHER = "trtllm"

            def test_fp8(self):
                self.evaluate("gsm8k", quant_algo="FP8")

    MODEL_NAME is the model under which references are registered. LAUNCHER starts the endpoint: a
    name, or a mapping with `name` and options. MODEL_PATH is its option `model`. Without LAUNCHER,
    the endpoint is that of --serve-eval-base-url. OPTIONS are options of every evaluation.
    """

    MODEL_NAME: ClassVar[str | None] = None
    MODEL_PATH: ClassVar[str | None] = None
    LAUNCHER: ClassVar[LauncherOption | None] = None
    OPTIONS: ClassVar[Mapping[str, Any]] = {}

    _evaluator: Evaluator

    @pytest.fixture(autouse=True)
    def _take_evaluator(self, serve_eval: Evaluator) -> None:
        self._evaluator = serve_eval

    def list_defaults(self) -> dict[str, Any]:
        """Return the options of every test of this class, which markers and calls override."""
        attributes = {
            "model_name": self.MODEL_NAME,
            "model_path": self.MODEL_PATH,
            "launcher": self.LAUNCHER,
        }
        # An attribute that is not set takes nothing back; None in a marker or a call does.
        return {
            **self._list_constants(),
            **self.OPTIONS,
            **{k: v for k, v in attributes.items() if v is not None},
        }

    def _list_constants(self) -> dict[str, Any]:
        """Return other attributes in capitals: one that reads as an option must not be ignored."""
        own = [vars(one) for one in type(self).__mro__ if one not in AccuracyTests.__mro__]
        found = {name: value for one in reversed(own) for name, value in one.items()}
        return {
            name: value
            for name, value in found.items()
            if name.isupper() and not hasattr(AccuracyTests, name)
        }

    def evaluate(self, *tasks: TaskOption, **options: Any) -> Report:
        """Evaluate the endpoint on tasks, as `Evaluator.evaluate` does, and return the report."""
        __tracebackhide__ = True
        return self._evaluator.evaluate(*tasks, **options)

    def compare(
        self, a: SideOption, b: SideOption, *tasks: TaskOption, **options: Any
    ) -> Comparison:
        """Judge deployment B against A, as `Evaluator.compare` does, and return the comparison."""
        __tracebackhide__ = True
        return self._evaluator.compare(a, b, *tasks, **options)
