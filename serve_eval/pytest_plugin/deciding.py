"""Tell which runs without a verdict a test may judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.report.ci import CiCase
    from serve_eval.schema import Report


def pass_unjudged(report: Report, cases: list[CiCase]) -> list[CiCase]:
    """Return the cases of a run that its test judges itself, since it asked for no reference.

    They pass, unless too many answers are missing: those are errors, as under a verdict.
    """
    return [*_list_unjudged(report, cases), *cases[len(report.tasks) :]]


def _list_unjudged(report: Report, cases: list[CiCase]) -> Iterator[CiCase]:
    from serve_eval.report.ci import CiState
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
