"""Describe a finished run for pytest, and end its test by the worst of its verdicts."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve_eval.frozen import freeze
from serve_eval.pytest_plugin.endings import (
    AccuracyEnding,
    AccuracyNotMeasured,
    AccuracyRegression,
    AccuracyUndecided,
)

if TYPE_CHECKING:
    from rich.console import Console

    from serve_eval.errors import ServeEvalError
    from serve_eval.report.ci_result import CiCase, CiState, OneLine
    from serve_eval.schema import Report, Verdict
    from serve_eval.workflows.diagnose import Leads


COLUMNS = 80
NOT_KEPT = (
    "pytest deletes this folder after a few sessions;\n"
    "          --serve-eval-output DIR, or serve_eval_output in pytest.ini, keeps it"
)


@freeze
class EvaluatedTest:
    """The run of a test: its worst state, the summary as printed, why it did not pass, figures.

    `line` is its line for chat. `warnings` are those of a run that passed. `undecided`
    says why a run that passed decides nothing ("" if it does). In a `rehearsal` nothing is judged.
    """

    state: CiState
    text: str
    reason: str
    properties: Mapping[str, str]
    line: OneLine | None = None
    warnings: Sequence[str] = ()
    undecided: str = ""
    rehearsal: bool = False

    @property
    def passed(self) -> bool:
        """True if no verdict and no part of the path was bad."""
        return self.state == "passed"

    @property
    def goes_on(self) -> bool:
        """True if the rehearsal of this run went through, so that the test rehearses the rest."""
        unsupported = self.line is not None and self.line.outcome == "UNSUPPORTED"
        return self.rehearsal and self.state == "skipped" and not unsupported


def describe_run(
    report: Report,
    folder: Path,
    *,
    kept: bool,
    judges_itself: bool = False,
    max_detects: float | None = None,
) -> EvaluatedTest:
    """Return the result of a run, with the states that junit.xml has for it.

    Its first line is that of the worst task. If the folder is not `kept`, the text says so. A test
    that `judges_itself` asked for no reference. A run that detects only drops above `max_detects`
    points decides nothing.
    """
    from serve_eval.report.ci_result import CiState, withhold_cases
    from serve_eval.report.document import print_document
    from serve_eval.report.run.document import make_run_document
    from serve_eval.report.task_line import describe_undecided

    report = _speak_to_tests(report)
    leads = find_leads_in(folder, report.exit_code, report.plan.include_path)
    here = shorten_path(folder)
    document = make_run_document(report, here, leads.causes, leads.places)
    cases = document.cases
    if judges_itself:
        cases = pass_unjudged(report, cases)
    if report.rehearsal:
        cases = withhold_cases(cases)
    passed = all(case.state is CiState.PASSED for case in cases)
    undecided = describe_undecided(report, max_detects) if passed else ""
    if passed:
        document = make_run_document(_drop_warnings(report), here)
    return conclude(
        cases,
        draw(lambda console: print_document(document, console)),
        kept=kept,
        properties=dict(list_properties(cases, folder, document.commands)),
        warnings=list(_list_warnings(report)),
        undecided=undecided,
        rehearsal=report.rehearsal,
    )


def conclude(
    cases: Sequence[CiCase],
    summary: str,
    *,
    kept: bool,
    properties: Mapping[str, str],
    warnings: Sequence[str],
    undecided: str,
    rehearsal: bool,
) -> EvaluatedTest:
    """Return the result of a test, whose first line is that of its worst case.

    `warnings` count if all cases passed. The lines of a `rehearsal` begin with this word.
    """
    from serve_eval.report.ci_result import CiState, write_line
    from serve_eval.schema import REHEARSED

    order = (CiState.FAILURE, CiState.ERROR, CiState.SKIPPED, CiState.PASSED)
    worst = min((case.state for case in cases), key=order.index, default=CiState.SKIPPED)
    found = [_say(case) for case in cases if case.state is worst]
    found = [replace(line, notice=REHEARSED if rehearsal else line.notice) for line in found]
    found.sort(key=lambda line: not line.others)  # the one that counts all tasks
    reasons = [write_line(line) for line in found]
    told = [*reasons, "", summary, *(() if kept else (f" {'kept':<8} {NOT_KEPT}",))]
    passed = worst is CiState.PASSED
    return EvaluatedTest(
        state=worst,
        text="\n".join(told),
        reason="; ".join(reasons),
        properties=properties,
        line=found[0] if found else None,
        warnings=[*warnings, *filter(None, [undecided])] if passed else (),
        undecided=undecided,
        rehearsal=rehearsal,
    )


def describe_error(error: ServeEvalError, folder: Path | None = None, *, kept: bool = True) -> str:
    """Return the text of an error that stopped a run, with the folder of its answers if any."""
    from serve_eval.errors import EndpointError, NotComparableError, PlanError
    from serve_eval.pytest_plugin.endings import say_for_tests

    # Other errors quote the logs and the commands of servers, which have such flags too.
    asked = isinstance(error, PlanError | NotComparableError)
    said, hint = say_for_tests(str(error)) if asked else str(error), error.hint
    if isinstance(error, EndpointError):  # The name of a model there, not that of the reference.
        said, hint = said.replace("with --model", "with model="), hint.replace("--model", "model=")
    lines = [f"{type(error).__name__}: {said}"]
    if hint:
        lines.append(say_for_tests(hint))
    if folder is not None and folder.is_dir():
        lines += list_counts(folder) if isinstance(error, EndpointError) else []
        lines.append(f"run folder: {shorten_path(folder)}")
        lines += [] if kept else [NOT_KEPT]
    return "\n".join(lines)


def end_test(result: EvaluatedTest, *, strict: bool) -> None:
    """Raise what ends the test, unless it passes, or goes on to the end of its rehearsal."""
    __tracebackhide__ = True
    from serve_eval.report.ci_result import CiState

    if result.state is CiState.FAILURE:
        raise AccuracyRegression(result.text)
    if result.state is CiState.ERROR:
        raise AccuracyNotMeasured(result.text)
    if result.goes_on:
        return
    if result.state is CiState.SKIPPED and strict:
        raise AccuracyUndecided(result.text)
    if result.undecided and strict:
        raise AccuracyUndecided(f"{result.undecided}\n{result.text}")
    if result.state is CiState.SKIPPED:
        pytest.skip(result.reason)


def _say(case: CiCase) -> OneLine:
    """Return the line about a task or a part of the path."""
    from serve_eval.report.ci_result import OneLine

    if case.line is not None:
        return case.line
    outcome = "INCONCLUSIVE" if case.state == "skipped" else case.state.upper()
    return OneLine(outcome, case.name, cause=case.message, sure=True)


def find_leads_in(folder: Path, exit_code: int, include_path: Sequence[str]) -> Leads:
    """Return what leads to the cause of a red run or comparison."""
    from serve_eval.verdicts.exit_code import FAIL
    from serve_eval.workflows.diagnose import Leads

    if exit_code != FAIL:
        return Leads()

    from serve_eval.errors import RunFolderError
    from serve_eval.workflows.diagnose.judged import read_folder
    from serve_eval.workflows.diagnose.story import find_leads

    try:
        return find_leads(read_folder(folder, include_path))
    except RunFolderError:
        return Leads()


def _list_warnings(report: Report) -> Iterator[str]:
    """Yield what a reader should know although the run passed."""
    from serve_eval.report.run.conclusions import remark_on_losses

    for task in report.tasks:
        told = (*task.verdict.warnings, *remark_on_losses(task.result))
        yield from (f"{task.result.task}: {line}" for line in told)
    yield from report.warnings


def _speak_to_tests(report: Report) -> Report:
    """Return a report whose warnings and reasons name keywords of `evaluate` instead of flags."""
    from serve_eval.pytest_plugin.endings import say_for_tests

    tasks = [replace(task, verdict=speak_in_verdict(task.verdict)) for task in report.tasks]
    warnings = tuple(map(say_for_tests, report.warnings))
    return replace(report, tasks=tuple(tasks), warnings=warnings)


def speak_in_verdict(verdict: Verdict) -> Verdict:
    """Return a verdict whose warnings and reasons name keywords instead of flags.

    UNSUPPORTED stays as it is, since its reason quotes flags of the server.
    """
    from serve_eval.pytest_plugin.endings import say_for_tests
    from serve_eval.schema import VerdictOutcome

    if verdict.outcome is VerdictOutcome.UNSUPPORTED:
        return verdict
    warnings, reasons = (
        tuple(map(say_for_tests, lines)) for lines in (verdict.warnings, verdict.reasons)
    )
    return replace(verdict, warnings=warnings, reasons=reasons)


def _drop_warnings(report: Report) -> Report:
    """Return a report without its warnings, which pytest shows in its own summary."""
    tasks = [replace(task, verdict=replace(task.verdict, warnings=())) for task in report.tasks]
    return replace(report, tasks=tuple(tasks), warnings=())


def draw(print_on: Callable[[Console], None]) -> str:
    """Return what a function prints on a console without colours."""
    from rich.console import Console

    # On a terminal, long lines are broken between words.
    console = Console(
        file=io.StringIO(),
        width=COLUMNS,
        force_terminal=True,
        color_system=None,
        highlight=False,
        emoji=False,
    )
    print_on(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()


def shorten_path(folder: Path) -> Path:
    """Return a folder below the working directory as commands there can name it."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def list_properties(
    cases: Sequence[CiCase], folder: Path, commands: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the figures of each case, the folder, and the command that comes next if any does."""
    for case in cases:
        yield from ((f"{case.name}.{name}", value) for name, value in case.properties.items())
    yield "run_folder", str(folder)
    if commands:
        yield "next", commands[0]


_PARTS = ("", "a", "b")
"""Folders with answers: a run, or the sides of a comparison."""


def list_counts(folder: Path) -> list[str]:
    """Return what was answered of each task of a run, or of the sides of a comparison."""
    return [line for name in _PARTS for line in _count_in_run(folder / name, name)]


def _count_in_run(folder: Path, side: str) -> Iterator[str]:
    """Yield what was answered of each task of a run, or of a side of a comparison."""
    from serve_eval.errors import RunFolderError
    from serve_eval.series.read_runs import count_answers

    try:
        counts = count_answers(folder)
    except (OSError, RunFolderError):
        return
    by = f" by {side.upper()}" if side else ""
    for task, answered, planned in counts:
        yield f"answered so far{by}: {answered} of {planned} of {task}"


def pass_unjudged(report: Report, cases: list[CiCase]) -> list[CiCase]:
    """Return the cases of a run that its test judges itself, since it asked for no reference.

    They pass, unless too many answers are missing: those are errors, as under a verdict.
    """
    return [*_list_unjudged(report, cases), *cases[len(report.tasks) :]]


def _list_unjudged(report: Report, cases: list[CiCase]) -> Iterator[CiCase]:
    from serve_eval.report.ci_result import CiState
    from serve_eval.schema import VerdictOutcome
    from serve_eval.verdicts.validity import objections

    for task, case in zip(report.tasks, cases, strict=False):
        if task.verdict.outcome is not VerdictOutcome.NO_REFERENCE or case.line is None:
            yield case
        elif why := objections(task.result):
            line = replace(case.line, outcome="ERROR", cause=why[0], sure=True)
            yield replace(case, state=CiState.ERROR, line=line)
        else:
            yield replace(case, state=CiState.PASSED)


PASSED_ON = (
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    pytest.exit.Exception,
    pytest.skip.Exception,
    AccuracyEnding,
)
"""Exceptions that end the session, or a test by intent."""
_LIMITS = (
    "The test ended while it waited for the server, so nothing was judged. sample_timeout_s= and"
    " stall_timeout_s= of evaluate() end the wait for a server that hangs, before the time limit"
    " of the test."
)


def describe_foreign(error: BaseException, folder: Path) -> str:
    """Return the text of an exception from outside, with what was answered until then.

    A traceback follows if the exception is not an outcome of pytest.
    """
    said = str(error).strip() or "no message"
    lines = [f"{type(error).__name__}: {said.splitlines()[0]}", _LIMITS, *_list_answered(folder)]
    if not isinstance(error, pytest.fail.Exception):
        lines += ["", *"".join(traceback.format_exception(error)).splitlines()]
    return "\n".join(lines)


def _list_answered(folder: Path) -> Iterator[str]:
    """Yield what was answered of each task, and the folder that holds it."""

    if not folder.is_dir():
        yield "nothing was asked yet"
        return
    yield from list_counts(folder) or ["nothing was asked yet"]
    yield f"run folder: {shorten_path(folder)}"
