"""Judge finished runs and suites by another rule or other references, without asking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import PlanError, RunFolderError, ServeEvalError, WithheldCodeError
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.session_log import Stopwatch
from serve_eval.schema import Plan, Report, RunError, Spec, Suite, SuiteReport, SuiteRun
from serve_eval.series.measured_runs import MeasuredRun
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.reports.report_file import read_report
from serve_eval.storage.reports.story_results import find_suite_report, read_suite
from serve_eval.storage.story_files import SUITE
from serve_eval.workflows.suite.execution import describe_error, report_on
from serve_eval.workflows.suite.judgement import EndedRun

PlanOf = Callable[[Path], Plan]
"""Returns how the run in a folder is to be judged."""


def judge_suite_again(folder: Path, plan_of: PlanOf, *, strict: bool = False) -> SuiteReport:
    """Return the report of a suite whose finished runs are judged by the plans of `plan_of`.

    A run without a report has the error that stopped it. The folder keeps its own report. Raises
    RunFolderError for a folder that holds no suite.
    """
    clock, suite = Stopwatch(), read_suite(folder)
    return report_on(suite, _judge_runs(suite, folder, plan_of, strict), clock, strict=strict)


def _judge_runs(suite: Suite, folder: Path, plan_of: PlanOf, strict: bool) -> list[EndedRun]:
    """Return the runs of a suite, in its order, as they are judged now.

    Raises PlanError or WithheldCodeError if no run can be judged in the way that was asked for.
    """
    known = find_suite_report(folder)
    stopped = {one.name: one.error for one in known.runs if one.error} if known else {}
    ended, refused = list[EndedRun](), list[ServeEvalError]()
    for run in suite.runs:
        place, planned = folder / SUITE_RUNS / run.name, run
        try:
            read_report(place)
            run = replace(run, plan=plan_of(place))
            report = judge_again(run.plan, place, strict=strict)
        except (PlanError, WithheldCodeError) as error:
            refused.append(error)
            ended.append(EndedRun(run=run, error=describe_error(error)))
        except ServeEvalError as error:
            told = stopped.get(run.name) or describe_error(error)
            ended.append(EndedRun(run=run, error=told))
        else:
            ended.append(_add_stopped(planned, report, stopped.get(run.name)))
    if refused and len(refused) == len(ended):
        raise refused[0]
    return ended


def _add_stopped(run: SuiteRun, report: Report, error: RunError | None) -> EndedRun:
    """Return a run that was judged, with the tasks that an error kept out of its report."""
    if error is None or {s.name for s in run.plan.tasks} <= {s.name for s in report.plan.tasks}:
        return EndedRun(run=replace(run, plan=report.plan), report=report, kept=True)
    return EndedRun(run=run, error=error, earlier=report)


def judge_measured(
    runs: Sequence[MeasuredRun], plan_of: PlanOf
) -> tuple[list[MeasuredRun], list[str]]:
    """Return the runs of a table as they are judged now, and notes on those left out.

    The correction of a suite counts all of its runs, also those that the table lacks. A run that
    cannot be judged is left out; in a suite it is an ERROR. Raises ServeEvalError if none can be.
    """
    suites: dict[Path, tuple[list[EndedRun], SuiteReport]] = {}
    judged, notes, errors = list[MeasuredRun](), list[str](), list[ServeEvalError]()
    for run in runs:
        place = run.folder.parent.parent
        try:
            if run.outside or run.folder.parent.name != SUITE_RUNS or not SUITE.has_plan(place):
                again = judge_again(plan_of(run.folder), run.folder)
                judged.append(replace(run, report=again))
                continue
            if place not in suites:
                suite, clock = read_suite(place), Stopwatch()
                ended = _judge_runs(suite, place, plan_of, strict=False)
                suites[place] = ended, report_on(suite, ended, clock)
        except ServeEvalError as error:
            errors.append(error)
            notes.append(f"{run.folder} is left out, since this rule cannot judge it: {error}")
            continue
        ended, report = suites[place]
        rows = {row.task: row for row in report.rows if row.run == run.folder.name}
        found = next(
            (one.report or one.earlier for one in ended if one.run.name == run.folder.name), None
        )
        judged.append(replace(run, report=found, judged=rows))
    if all(run.report is None for run in judged):
        raise errors[0] if errors else _explain_errors(suites)
    return judged, notes


def _explain_errors(
    suites: Mapping[Path, tuple[Sequence[EndedRun], SuiteReport]],
) -> RunFolderError:
    """Return the error for suites of which no run can be judged, with the first reason."""
    why = next(one.error for ended, _ in suites.values() for one in ended if one.error)
    return RunFolderError(f"this rule can judge no run: {why.message}", hint=why.hint)


def describe_rules(runs: Sequence[MeasuredRun]) -> str:
    """Return by which rules runs are judged now, with the margins that were asked for."""
    reports = [run.report for run in runs if run.report is not None]
    named = [one.plan.verdict for one in reports if one.plan.rule_named]
    usual = [
        Spec(name=task.verdict.rule)
        for one in reports
        if not one.plan.rule_named
        for task in one.tasks
        if task.verdict.num_samples is not None and task.verdict.reference is not None
    ]
    told = dict.fromkeys(
        " ".join(
            [one.name, *(f"{name} {_write(one.options[name])}" for name in sorted(one.options))]
        )
        for one in (*named, *usual)
    )
    return f"these verdicts are by {'; '.join(told)}: the reports of the runs may have others"


def _write(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
