"""Judge the finished runs of a suite by another rule or other references, without asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.stopwatch import Stopwatch
from serve_eval.evaluation.storage.file_names import SUITE_RUNS
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.evaluation.storage.reports.suite_files import find_suite_report, read_suite
from serve_eval.schema import Plan, SuiteReport
from serve_eval.workflows.suite.execution import describe_error, report_on
from serve_eval.workflows.suite.judgement import EndedRun


def judge_suite_again(
    folder: Path, plan_of: Callable[[Path], Plan], *, strict: bool = False
) -> SuiteReport:
    """Return the report of a suite whose finished runs are judged by the plans of `plan_of`.

    `plan_of` returns how the run in a folder is to be judged. A run without a report has the error
    that stopped it. The folder keeps its own report. Raises RunFolderError for a folder that holds
    no suite.
    """
    clock, suite = Stopwatch(), read_suite(folder)
    known = find_suite_report(folder)
    stopped = {one.name: one.error for one in known.runs if one.error} if known else {}
    ended = []
    for run in suite.runs:
        place = folder / SUITE_RUNS / run.name
        try:
            read_report(place)
            run = replace(run, plan=plan_of(place))
            report = judge_again(run.plan, place, strict=strict)
        except ServeEvalError as error:
            told = stopped.get(run.name) or describe_error(error)
            ended.append(EndedRun(run=run, error=told))
        else:
            ended.append(EndedRun(run=run, report=report, kept=True))
    return report_on(suite, ended, clock, strict=strict)
