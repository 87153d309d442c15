"""Execute a suite, or judge its finished runs again without asking."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from serve_eval.errors import (
    PlanError,
    RunFolderError,
    ServeEvalError,
    SpentBudgetError,
    WithheldCodeError,
)
from serve_eval.evaluation.earlier_run import Rerun
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.launch import Launching, launch, with_model
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.evaluation.shared_server import SharedServer
from serve_eval.frozen import freeze
from serve_eval.plugins.extensions import defect
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    CERTAIN,
    TOKENS,
    Plan,
    Progress,
    Report,
    RunError,
    Spec,
    Suite,
    SuiteReport,
    SuiteRun,
    SuiteRunReport,
    is_rehearsal,
)
from serve_eval.series.measured_runs import MeasuredRun
from serve_eval.storage.file_names import SERVERS, SUITE_RUNS
from serve_eval.storage.report_file import read_report
from serve_eval.storage.story_files import SUITE
from serve_eval.storage.story_results import (
    find_earlier_report,
    find_suite_report,
    read_suite,
    write_suite_report,
)
from serve_eval.verdicts.exit_code import INFRASTRUCTURE, went_through
from serve_eval.workflows.suite.judgement import (
    ALPHA,
    EndedRun,
    find_certain_fail,
    find_undecided,
    judge,
    share_errors,
)
from serve_eval.workflows.suite.preparation import (
    OF_ONE_TASK,
    find_earlier_tasks,
    groups,
    keep_names,
    list_new_tasks,
    open_folder,
    read_kept_report,
    split_plan,
)
from serve_eval.workflows.suite.rows import find_changes
from serve_eval.workflows.suite.spending import add_costs, bound_run


@with_scope
async def evaluate_suite(
    suite: Suite,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    notify: Callable[[str], None] = ignore,
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    today: date | None = None,
    launching: Launching | None = None,
    rerun: Rerun = "failed",
) -> SuiteReport:
    """Run or resume a suite in its folder, and return the report.

    The report is also written to suite_report.json. If an error stops a run, the report includes
    the error, and the next run begins. `notify` receives a line when a run begins and when it ends
    early. Expiry dates are compared with `today` (None: the current day in UTC). `launching` starts
    a server (None: the plan's launcher). `rerun` selects the samples of existing runs that are sent
    again. Raises RunFolderError if the folder belongs to another suite. An interrupted suite keeps
    the progress of every run.
    """
    clock = Stopwatch()
    suite, renamed = keep_names(out_dir, suite)
    for line in renamed:
        notify(line)
    with open_folder(out_dir, suite) as folder:
        session = _SuiteSession(
            suite=suite,
            folder=folder,
            progress=progress,
            notify=notify,
            environ=environ,
            strict=strict,
            launching=launching or partial(launch, notify=notify),
            rerun=rerun,
            today=today,
        )
        in_order = await _finish_runs(session)
        report = report_on(suite, in_order, clock, today=today, strict=strict)
        report = replace(report, changes=find_changes(find_earlier_report(folder), report))
        write_suite_report(folder, report)
    return report


def report_on(
    suite: Suite,
    in_order: Sequence[EndedRun],
    clock: Stopwatch,
    *,
    today: date | None = None,
    strict: bool = False,
) -> SuiteReport:
    """Return the report of a suite whose runs ended, in the suite's order."""
    judged = judge(in_order, suite.waivers, today or datetime.now(UTC).date(), strict=strict)
    reports = [one.report for one in in_order if one.report is not None]
    rehearsal = any(is_rehearsal(run.plan) for run in suite.runs) or any(
        report.rehearsal for report in reports
    )
    return SuiteReport(
        schema_version=SUITE.version,
        rehearsal=rehearsal,
        name=suite.name,
        verdict=judged.verdict,
        exit_code=went_through(judged.exit_code) if rehearsal else judged.exit_code,
        alpha=ALPHA,
        runs=tuple(_run_report(one, strict=strict) for one in in_order),
        rows=judged.rows,
        waivers=judged.waivers,
        started_at=clock.started_at,
        wall_s=clock.wall_s,
        cost=add_costs([one.cost for one in reports]),
    )


@freeze
class _SuiteSession:
    """The objects that the runs of a suite share."""

    suite: Suite
    folder: Path
    progress: Progress | None
    notify: Callable[[str], None]
    environ: Mapping[str, str]
    strict: bool
    launching: Launching
    rerun: Rerun
    today: date | None

    def day(self) -> date:
        """Return the day with which the expiry dates of waivers are compared."""
        return self.today or datetime.now(UTC).date()


async def _finish_runs(session: _SuiteSession) -> list[EndedRun]:
    """Execute every unfinished run, grouped by server. Returns all runs in the suite's order."""
    runs, notify = session.suite.runs, session.notify
    finished = {run.name: read_kept_report(session.folder, run, session.rerun) for run in runs}
    ended = {
        run.name: EndedRun(run, report=r, kept=True) for run in runs if (r := finished[run.name])
    }
    if ended:
        notify(f"{len(ended)} of {len(runs)} runs are already finished")
    for number, group in enumerate(groups(runs), start=1):
        left = [run for run in group if run.name not in ended]
        if why := _find_end(session, ended.values()):
            ended |= {run.name: EndedRun(run, not_asked=why) for run in left}
            continue
        async with SharedServer(
            [run.plan for run in left], session.folder / SERVERS / str(number), session.launching
        ) as server:
            for run in left:
                plan, why = run.plan, _find_end(session, ended.values())
                if not why:
                    plan, why = bound_run(session.suite, run, session.folder)
                if why:
                    notify(f"{run.name}: {why}")
                    ended[run.name] = EndedRun(run, not_asked=why)
                    continue
                run = replace(run, plan=plan)
                notify(f"run {len(ended) + 1} of {len(runs)}: {run.name}")
                if new := list_new_tasks(session.folder, run):
                    notify(f"{run.name}: new: {', '.join(new)}; the other answers are kept")
                ended[run.name] = await _run(session, run, server)
                error = ended[run.name].error
                await server.note_end(error)
                if error is not None:
                    notify(f"{run.name}: {error.kind}: {error.message.partition(chr(10))[0]}")
    return [ended[run.name] for run in runs]


def _find_end(session: _SuiteSession, ended: Iterable[EndedRun]) -> str:
    """Return why no other run is asked, if a FAIL is certain and ends the suite; else ""."""
    if not session.suite.end_when_certain:
        return ""
    row = find_certain_fail([*ended], session.suite, session.day())
    return "" if row is None else f"{CERTAIN}: not asked, since {row.run}/{row.task} is FAIL"


async def _run(session: _SuiteSession, run: SuiteRun, server: SharedServer) -> EndedRun:
    """Return the run with its report or error. Even a defect must not stop the other runs."""
    try:
        report = await _evaluate(session, run, server)
    except ServeEvalError as error:
        if isinstance(error, SpentBudgetError) and session.suite.max_tokens_total is not None:
            return EndedRun(run, not_asked=f"{TOKENS}: not asked: {error}")
        stopped = await _ask_others(session, run, server, error)
        earlier = find_earlier_tasks(session.folder, run)
        return EndedRun(run, error=describe_error(stopped), earlier=earlier)
    except Exception as error:
        if session.environ.get("SERVE_EVAL_TRACEBACK"):
            raise
        ending = RunError(
            kind=type(error).__name__,
            message=f"unexpected: {error}",
            hint=defect(error),
            exit_code=INFRASTRUCTURE,
        )
        return EndedRun(run, error=ending)
    return EndedRun(run, report=report)


async def _evaluate(session: _SuiteSession, run: SuiteRun, server: SharedServer) -> Report:
    return await evaluate(
        run.plan,
        session.folder / SUITE_RUNS / run.name,
        progress=session.progress,
        environ=session.environ,
        strict=session.strict,
        launching=server.launch,
        rerun=session.rerun,
        grows=True,
        companions=server.companions,
        part=share_errors(session.suite, run, session.day()),
        notify=lambda line: session.notify(f"{run.name}: {line}"),
    )


async def _ask_others(
    session: _SuiteSession, run: SuiteRun, server: SharedServer, error: ServeEvalError
) -> ServeEvalError:
    """Ask the tasks of a run that can be asked, and return what stopped the others.

    An error that stops the other tasks as well, such as a failed start, takes precedence.
    """
    if not isinstance(error, OF_ONE_TASK) or len(run.plan.tasks) < 2:
        return error
    try:
        plan = await with_model(run.plan, session.environ)
        found = await asyncio.to_thread(split_plan, plan)
        if found is None:
            return error
        others = replace(run, plan=replace(run.plan, tasks=found[0].tasks))
        if read_kept_report(session.folder, others, session.rerun) is None:
            session.notify(f"{run.name}: asks only {', '.join(s.name for s in found[0].tasks)}")
            await _evaluate(session, others, server)
            await server.note_end(None)
    except RunFolderError:
        return error  # The folder has answers to the task that cannot be asked now.
    except ServeEvalError as other:
        return other
    return found[1]


def describe_error(error: ServeEvalError) -> RunError:
    """Return an error that stopped a run as its suite reports it."""
    return RunError(
        kind=type(error).__name__,
        message=str(error),
        hint=error.hint,
        exit_code=error.exit_code,
    )


def _run_report(one: EndedRun, *, strict: bool) -> SuiteRunReport:
    undecided = find_undecided(one) if strict else ""
    return SuiteRunReport(
        name=one.run.name,
        attributes=one.run.attributes,
        folder=f"{SUITE_RUNS}/{one.run.name}",
        kept=one.kept,
        error=one.error,
        warnings=(
            *one.run.notes,
            *(() if one.report is None else one.report.warnings),
            *((f"--strict: {one.run.name}: {undecided}",) if undecided else ()),
        ),
        not_asked=one.not_asked,
    )


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
    unasked = {one.name: one.not_asked for one in known.runs if one.not_asked} if known else {}
    ended, refused = list[EndedRun](), list[ServeEvalError]()
    for run in suite.runs:
        place, planned = folder / SUITE_RUNS / run.name, run
        if why := unasked.get(run.name):
            ended.append(EndedRun(run, not_asked=why))
            continue
        try:
            read_report(place)
            run = replace(run, plan=plan_of(place))
            report = judge_again(run.plan, place, strict=strict)
        except (PlanError, WithheldCodeError) as error:
            refused.append(error)
            ended.append(EndedRun(run, error=describe_error(error)))
        except ServeEvalError as error:
            told = stopped.get(run.name) or describe_error(error)
            ended.append(EndedRun(run, error=told))
        else:
            ended.append(_add_stopped(planned, report, stopped.get(run.name)))
    if refused and len(refused) == len(ended):
        raise refused[0]
    return ended


def _add_stopped(run: SuiteRun, report: Report, error: RunError | None) -> EndedRun:
    """Return a run that was judged, with the tasks that an error kept out of its report."""
    if error is None or {s.name for s in run.plan.tasks} <= {s.name for s in report.plan.tasks}:
        return EndedRun(replace(run, plan=report.plan), report=report, kept=True)
    return EndedRun(run, error=error, earlier=report)


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
