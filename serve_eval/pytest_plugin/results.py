"""Describe a finished run for pytest, and end its test by the worst of its verdicts."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve_eval.pytest_plugin.endings import (
    AccuracyNotMeasured,
    AccuracyRegression,
    AccuracyUndecided,
)

if TYPE_CHECKING:
    from serve_eval.errors import ServeEvalError
    from serve_eval.report.ci import CiState
    from serve_eval.schema import Report

COLUMNS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTest:
    """The run of a test: its worst state, the summary as printed, why it did not pass, figures."""

    state: CiState
    text: str
    reason: str
    properties: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """True if no verdict and no part of the path was bad."""
        return self.state == "passed"


def describe_run(report: Report, folder: Path) -> EvaluatedTest:
    """Return the result of a run, with the states that junit.xml has for it."""
    from serve_eval.report.ci import CiState, list_cases

    cases = list_cases(report)
    order = (CiState.FAILURE, CiState.ERROR, CiState.SKIPPED, CiState.PASSED)
    worst = min((case.state for case in cases), key=order.index, default=CiState.SKIPPED)
    reasons = [f"{case.name}: {case.said}" for case in cases if case.state is worst]
    reason = "; ".join(reasons)
    return EvaluatedTest(
        state=worst,
        text=f"{reason}\n\n{_print(report, folder)}",
        reason=reason,
        properties=dict(_list_properties(report, folder)),
    )


def describe_error(error: ServeEvalError, folder: Path | None = None) -> str:
    """Return the text of an error that stopped a run, with the folder of its answers if any."""
    lines = [f"{type(error).__name__}: {error}"]
    if error.hint:
        lines.append(error.hint)
    if folder is not None and folder.is_dir():
        lines.append(f"run folder: {_shorten(folder)}")
    return "\n".join(lines)


def end_test(result: EvaluatedTest, *, strict: bool) -> None:
    """Raise what ends the test, unless it passes."""
    __tracebackhide__ = True
    from serve_eval.report.ci import CiState

    if result.state is CiState.FAILURE:
        raise AccuracyRegression(result.text)
    if result.state is CiState.ERROR:
        raise AccuracyNotMeasured(result.text)
    if result.state is CiState.SKIPPED and strict:
        raise AccuracyUndecided(result.text)
    if result.state is CiState.SKIPPED:
        pytest.skip(result.reason)


def _print(report: Report, folder: Path) -> str:
    """Return the summary as `serve-eval run` prints it, without colours."""
    from rich.console import Console

    from serve_eval.report.summary import print_summary

    # On a terminal, long lines are broken between words.
    console = Console(
        file=io.StringIO(),
        width=COLUMNS,
        force_terminal=True,
        color_system=None,
        highlight=False,
        emoji=False,
    )
    print_summary(report, _shorten(folder), console, _find_slices(report, folder))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip()


def _shorten(folder: Path) -> Path:
    """Return a folder below the working directory as commands there can name it."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _find_slices(report: Report, folder: Path) -> Sequence[str]:
    """Return sentences about where a red run lost its score."""
    from serve_eval.verdicts.exit_code import FAIL

    if report.exit_code != FAIL:
        return ()
    from serve_eval.workflows.diagnose.story import name_slices

    return list(name_slices(folder, include_path=report.plan.include_path))


def _list_properties(report: Report, folder: Path) -> Iterator[tuple[str, str]]:
    from serve_eval.report.ci import list_cases

    for case in list_cases(report):
        yield from ((f"{case.name}.{name}", value) for name, value in case.properties.items())
    for task in report.tasks:
        if task.verdict.paired is not None and task.verdict.paired.p is not None:
            yield f"{task.result.task}.p", f"{task.verdict.paired.p:.4g}"
    yield "run_folder", str(folder)
