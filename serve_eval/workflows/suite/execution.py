"""The story of a suite: its runs one after the other, those of one server together, then one verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.endpoint.launch import Launching, launch
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.rerun import Rerun
from serve_eval.evaluation.storage.run_folder import pretty_json, write_private
from serve_eval.plugins.extensions import defect
from serve_eval.plugins.scope import scoped
from serve_eval.schema import Progress, RunError, Suite, SuiteReport, SuiteRun, SuiteRunReport
from serve_eval.verdicts.exit_code import INFRASTRUCTURE
from serve_eval.workflows.suite.folder import RUNS, SCHEMA_VERSION, SERVERS, SUITE_REPORT_FILE, kept_report, open_folder
from serve_eval.workflows.suite.judgement import ALPHA, Ended, judge
from serve_eval.workflows.suite.shared_server import SharedServer, groups

Told = Callable[[str], None]


@scoped
async def evaluate_suite(
    suite: Suite,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    told: Told = lambda line: None,
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    today: date | None = None,
    launching: Launching | None = None,
    rerun: Rerun = "failed",
) -> SuiteReport:
    """Runs a suite in its folder, or goes on with what is there, and returns the report (also in suite_report.json).

    A run that is stopped by an error is reported as one, and the next begins. `told` gets a line when a run begins and
    when one ended early. `today` is what expiry dates are compared with (None: the day in UTC). `launching` starts a
    server (None: the plan's launcher). `rerun` says what of runs that are there is asked again. Raises RunFolderError
    for a folder that is not this suite's; interrupted, it leaves every run as far as it came.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    with open_folder(out_dir, suite) as folder:
        finished = {run.name: kept_report(folder, run, rerun) for run in suite.runs}
        ended = {run.name: Ended(run=run, report=r, kept=True) for run in suite.runs if (r := finished[run.name])}
        if ended:
            told(f"{len(ended)} of {len(suite.runs)} runs are finished already")
        for number, group in enumerate(groups(suite.runs), start=1):
            left = [run for run in group if run.name not in ended]
            async with SharedServer(
                left, folder / SERVERS / str(number), launching or partial(launch, told=told)
            ) as server:
                for run in left:
                    told(f"run {len(ended) + 1} of {len(suite.runs)}: {run.name}")
                    ended[run.name] = await _run(
                        run, folder, server, progress, environ, strict=strict, rerun=rerun, told=told
                    )
                    error = ended[run.name].error
                    await server.used(error)
                    if error is not None:
                        told(f"{run.name}: {error.kind}: {error.message.partition(chr(10))[0]}")
        in_order = [ended[run.name] for run in suite.runs]
        judged = judge(in_order, suite.waivers, today or datetime.now(UTC).date(), strict=strict)
        report = SuiteReport(
            schema_version=SCHEMA_VERSION,
            name=suite.name,
            verdict=judged.verdict,
            exit_code=judged.exit_code,
            alpha=ALPHA,
            runs=tuple(map(_run_report, in_order)),
            rows=judged.rows,
            waivers=judged.waivers,
            started_at=started_at.isoformat(timespec="seconds"),
            wall_s=round(time.monotonic() - began, 3),
        )
        write_private(folder / SUITE_REPORT_FILE, pretty_json(report))
    return report


async def _run(
    run: SuiteRun,
    folder: Path,
    server: SharedServer,
    progress: Progress | None,
    environ: Mapping[str, str],
    *,
    strict: bool,
    rerun: Rerun,
    told: Told,
) -> Ended:
    """The run with its report, or with the error that ended it: a defect of ours too must not cost the other runs."""
    try:
        report = await evaluate(
            run.plan,
            folder / RUNS / run.name,
            progress=progress,
            environ=environ,
            strict=strict,
            launching=server.launching,
            rerun=rerun,
            told=lambda line: told(f"{run.name}: {line}"),
        )
    except ServeEvalError as error:
        ending = RunError(kind=type(error).__name__, message=str(error), hint=error.hint, exit_code=error.exit_code)
        return Ended(run=run, error=ending)
    except Exception as error:
        if environ.get("SERVE_EVAL_TRACEBACK"):
            raise
        ending = RunError(
            kind=type(error).__name__,
            message=f"unexpected: {error}",
            hint=defect(error),
            exit_code=INFRASTRUCTURE,
        )
        return Ended(run=run, error=ending)
    return Ended(run=run, report=report)


def _run_report(one: Ended) -> SuiteRunReport:
    return SuiteRunReport(
        name=one.run.name,
        attributes=one.run.attributes,
        folder=f"{RUNS}/{one.run.name}",
        kept=one.kept,
        error=one.error,
        warnings=(*one.run.notes, *(() if one.report is None else one.report.warnings)),
    )
