"""Evaluate an endpoint for a test, to end the test as its verdict says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from serve_eval.pytest_plugin.asked import (
    AskedEvaluation,
    LauncherOption,
    Options,
    TaskOption,
    build_plan,
    drop_unset,
    merge_levels,
    read_base,
)
from serve_eval.pytest_plugin.endings import AccuracyNotMeasured, AccuracyWarning
from serve_eval.pytest_plugin.options import (
    MARKER,
    NO_ADDRESS,
    REHEARSES,
    USED_ADDRESS,
    read_options,
)
from serve_eval.pytest_plugin.workbench import Workbench, find_lack, skip_without_room

if TYPE_CHECKING:
    from serve_eval.pytest_plugin.compared import SideOption
    from serve_eval.pytest_plugin.results import EvaluatedTest
    from serve_eval.schema import Comparison, Endpoint, Plan, Report


_STRICT = "Without --serve-eval-strict, or serve_eval_strict of the ini file, the test is skipped."


class Evaluator:
    """The fixture `serve_eval` of a test: evaluates with the options of its class and markers.

    `defaults` are those of its class, below those of the markers.
    """

    def __init__(
        self,
        item: pytest.Item,
        workbench: Workbench,
        defaults: Options | None = None,
    ) -> None:
        self._item, self._workbench = item, workbench
        self._defaults = defaults or {}

    def evaluate(self, *tasks: TaskOption, **options: Any) -> Report:
        """Evaluate the endpoint of this test and return the report, if it passes.

        `tasks` and `options` are those of a plan file and of its sections, such as `quant_algo`,
        `limit` or `concurrency`. Five more options are for tests:

        * `model_name`: the model under which references are registered;
        * `launcher`: starts the endpoint. Without it, the address is that of the plug-in's options;
        * `launcher_options`: further options of the launcher;
        * `model_path`: the launcher's option `model`;
        * `rehearse`: a stand-in answers in place of the launcher's servers, and nothing is judged.

        Raises AccuracyRegression for a FAIL, and AccuracyNotMeasured if nothing was measured. Skips
        the test if the run did not decide, or if there are too few GPUs. With `no_reference=True`,
        the test judges the report itself. Emits an AccuracyWarning for each warning about a run
        that passed. A rehearsal that went through returns its report, and its test is skipped at
        its end.
        """
        __tracebackhide__ = True
        from serve_eval.plugins.scope import scope
        from serve_eval.pytest_plugin.results import PASSED_ON, describe_run, shorten_path
        from serve_eval.report.run.document import TellingReport

        folder = self._workbench.name_folder(self._item.nodeid)
        try:
            with scope():
                with self._work_in_root():
                    asked = self._merge(tasks, options)
                    report = self._workbench.evaluate(self._plan(asked), folder)
                result = describe_run(
                    report,
                    folder,
                    kept=self._keeps,
                    judges_itself=asked.judges_itself,
                    max_detects=self._workbench.options.max_detects,
                )
        except PASSED_ON:
            raise
        except BaseException as error:
            raise self._describe_end(error, folder) from None
        self._end(result, folder)
        return TellingReport.of(report, shorten_path(folder))

    def compare(
        self,
        a: SideOption,
        b: SideOption,
        *tasks: TaskOption,
        ask_twice: int | None = None,
        show_flips: int | None = None,
        one_after_the_other: bool = False,
        **options: Any,
    ) -> Comparison:
        """Ask two deployments the same prompts, judge B against A, and end the test by the verdict.

        A side is the address of an endpoint, options of `evaluate` for this side only, a plan or
        its file, or the folder of a finished run. `tasks` and `options` are those of `evaluate`, of
        both sides; `verdict` is `paired` if not named. `ask_twice`, `show_flips` and
        `one_after_the_other` are as for `serve-eval compare`. The test ends as by `evaluate`.
        """
        __tracebackhide__ = True
        from serve_eval.plugins.scope import scope
        from serve_eval.pytest_plugin.compared import build_sides, describe_compared
        from serve_eval.pytest_plugin.results import PASSED_ON
        from serve_eval.workflows.compare.document import TellingComparison

        folder = self._workbench.name_folder(self._item.nodeid)
        found = self._workbench.options
        try:
            with scope():
                with self._work_in_root():
                    marked_tasks, marked = read_marker(self._item)
                    sides = build_sides(
                        (a, b),
                        tasks or marked_tasks,
                        (self._defaults, marked, options),
                        self._plan,
                        base=read_base(found.plan),
                        ask_twice=ask_twice,
                    )
                    comparison = self._workbench.compare(
                        sides,
                        folder,
                        show_flips=show_flips,
                        one_after_the_other=one_after_the_other,
                    )
                result = describe_compared(
                    comparison,
                    folder,
                    kept=self._keeps,
                    include_path=sides.b.plan.include_path,
                    max_detects=found.max_detects,
                )
        except PASSED_ON:
            raise
        except BaseException as error:
            raise self._describe_end(error, folder) from None
        self._end(result, folder)
        return TellingComparison.of(comparison)

    @property
    def _keeps(self) -> bool:
        """True if the run folders outlive the session."""
        return self._workbench.options.output is not None

    def _work_in_root(self) -> AbstractContextManager[None]:
        """Return a context in which relative paths are below pytest's rootdir."""
        return chdir(self._workbench.options.root)

    def _describe_end(self, error: BaseException, folder: Path) -> AccuracyNotMeasured:
        """Return the error of a test that measured nothing, and keep its line."""
        from serve_eval.errors import ServeEvalError
        from serve_eval.pytest_plugin.lines_of_tests import note_error
        from serve_eval.pytest_plugin.results import describe_error, describe_foreign

        message = (
            describe_error(error, folder, kept=self._keeps)
            if isinstance(error, ServeEvalError)
            else describe_foreign(error, folder)
        )
        ending = AccuracyNotMeasured(message)
        note_error(self._item, ending, folder)
        if folder.is_dir():
            self._item.user_properties.append(("run_folder", str(folder)))
        return ending

    def _end(self, result: EvaluatedTest, folder: Path) -> None:
        """Keep the properties, the line and the warnings of a test, and end it by its result."""
        __tracebackhide__ = True
        from serve_eval.pytest_plugin.lines_of_tests import note_line
        from serve_eval.pytest_plugin.results import end_test

        strict = self._workbench.options.strict
        if result.rehearsal:
            self._item.stash[REHEARSES] = True
        self._item.user_properties.extend(result.properties.items())
        if result.passed and not (strict and result.undecided):
            # Otherwise the text is that of the outcome.
            self._item.add_report_section("call", "serve-eval", result.text)
        if result.line is not None:
            note_line(self._item, result.line, folder)
        for warning in result.warnings:
            self._item.warn(AccuracyWarning(warning))
        end_test(result, strict=strict)

    def find_endpoint(self) -> Endpoint:
        """Return the endpoint that an evaluation of this test would ask, started if needed.

        Raises AccuracyNotMeasured if it does not answer, or if it exists for one run only.
        """
        __tracebackhide__ = True
        from serve_eval.errors import ServeEvalError
        from serve_eval.plugins.scope import scope
        from serve_eval.pytest_plugin.results import describe_error

        try:
            with scope(), chdir(self._workbench.options.root):
                plan = self._plan(self._merge((), {}), needs_tasks=False)
                return self._workbench.find_endpoint(plan)
        except ServeEvalError as error:
            raise AccuracyNotMeasured(describe_error(error)) from None

    def _merge(self, tasks: Sequence[TaskOption], called: Options) -> AskedEvaluation:
        """Return what the class, the markers and the call ask for together."""
        marked_tasks, marked = read_marker(self._item)
        return merge_levels(tasks or marked_tasks, self._defaults, marked, called)

    def _plan(
        self,
        asked: AskedEvaluation,
        base: Options | None = None,
        environ: Mapping[str, str] = os.environ,
        *,
        needs_tasks: bool = True,
    ) -> Plan:
        """Return the plan of the test, or skip it if it cannot run here.

        A wrong option is an error on every machine, so it comes before a reason to skip. `base`
        holds the keys below those of the test (None: those of the plan file of all tests).
        """
        __tracebackhide__ = True
        options = self._workbench.options
        base = read_base(options.plan) if base is None else base
        plan = build_plan(asked, base, options.base_url, environ, needs_tasks=needs_tasks)
        named = {"launcher", "base_url"} & {*drop_unset(asked, base), *asked.options}
        if asked.launcher is None and not named:
            if options.base_url is not None:
                self._item.stash[USED_ADDRESS] = True
            elif options.strict:
                raise AccuracyNotMeasured(f"{NO_ADDRESS}\n{_STRICT}")
            else:
                pytest.skip(NO_ADDRESS)
        plan = self._choose_rehearsal(plan, asked)
        skip_without_room(plan)
        return plan

    def _choose_rehearsal(self, plan: Plan, asked: AskedEvaluation) -> Plan:
        """Return the plan, or its rehearsal if the test or the command line asks for one.

        Of all tests that the command line rehearses, those without a stand-in are skipped. Raises
        PlanError if the test itself asks for a rehearsal that does not exist.
        """
        __tracebackhide__ = True
        from serve_eval.errors import PlanError
        from serve_eval.plan.launcher import rehearse_plan
        from serve_eval.schema import REHEARSAL

        of_all = self._workbench.options.rehearse
        if not (of_all or asked.rehearse or plan.launcher.name == REHEARSAL):
            return plan
        try:
            plan = rehearse_plan(plan)
        except PlanError as error:
            if asked.rehearse or not of_all:
                raise
            pytest.skip(str(error).replace("--rehearse", "--serve-eval-rehearse"))
        self._item.stash[REHEARSES] = True
        return plan


def read_marker(item: pytest.Item) -> tuple[tuple[TaskOption, ...], dict[str, Any]]:
    """Return the tasks and the options of the markers of a test; the closest one overrides."""
    tasks: tuple[TaskOption, ...] = ()
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        tasks = mark.args or tasks
        more = {**options.get("launcher_options", {}), **mark.kwargs.get("launcher_options", {})}
        options |= mark.kwargs
        if more:
            options["launcher_options"] = more
    return tasks, options


def skip_without_gpus(item: pytest.Item) -> None:
    """Mark a test to be skipped if its markers ask for more GPUs than there are.

    A rehearsal needs none.
    """
    _, options = read_marker(item)
    of_class = getattr(getattr(item, "cls", None), "OPTIONS", {})
    if read_options(item.config).rehearse or {**of_class, **options}.get("rehearse"):
        return
    lack = find_lack(int(options.get("gpus") or 0))
    if lack is not None:
        item.add_marker(pytest.mark.skip(reason=lack))


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
