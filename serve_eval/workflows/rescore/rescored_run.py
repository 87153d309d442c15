"""Write a new run folder with the answers of another run, scored under other options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import serve_eval
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plan.shard import shard_fields
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.schema import Plan, Report
from serve_eval.storage import run_folder
from serve_eval.storage.copied_run import (
    ANSWERS_FROM,
    check_copy,
    copy_answers,
    end_copy,
    mark_copy,
    open_copy,
)
from serve_eval.storage.reports.report_file import write_report

_HINT = "Without -o, the values are still printed."


def check_new_run(
    run: Path,
    to: Path,
    plan: Plan,
    prepared: Sequence[PreparedTask],
    prints: Mapping[str, Mapping[str, str]],
) -> None:
    """Raise RunFolderError or PlanError if the new run would make false claims.

    Call it before anything is written. `prepared` are the tasks as `run` asked them, each with the
    task as it scores now; `prints` are the run's fingerprints.
    """
    for p in prepared:
        stored, now = prints[p.task.name], p.fingerprint
        other = [
            name
            for name in stored.keys() & now.keys()
            if name != "version" and stored[name] != now[name]
        ]
        if other:
            raise RunFolderError(
                f"{p.task.name} no longer asks what {run} asked ({', '.join(sorted(other))}"
                " differ), so a new folder would claim requests that were never sent",
                hint=_HINT,
            )
    if to.resolve().is_relative_to(run.resolve()):
        raise RunFolderError(
            f"{to} is inside {run}, which must not change", hint="Choose another folder with -o."
        )
    check_copy(to, mark_copy([run], plan))
    if [p.fingerprint for p in prepare(plan)] != list(_fingerprints(prepared).values()):
        raise PlanError(
            "the reference that sets the number of samples was taken under another protocol",
            hint=_HINT,
        )


def write_rescored_run(
    run: Path, to: Path, plan: Plan, prepared: Sequence[PreparedTask], report: Report | None
) -> Report | None:
    """Write a run folder with the same answers and sessions, and with a report if `run` has one.

    Return that report. Raises RunFolderError if it cannot be written.
    """
    prints, mark = _fingerprints(prepared), mark_copy([run], plan)
    try:
        with open_copy(to, mark, plan, prints, own=run_folder.plan_and_owner(run)[1]) as folder:
            copy_answers(run, folder, prints)
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or to}: cannot be written: {error.strerror}"
        ) from error
    judged = judge_again(plan, to)  # writes the scores too
    if report is not None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        again = f"{ANSWERS_FROM}{run}, scored again at {now} by serve-eval {serve_eval.__version__}"
        judged = replace(
            judged,
            warnings=(*judged.warnings, again),
            started_at=report.started_at,
            wall_s=report.wall_s,
        )
        write_report(to, judged)
    end_copy(to, mark)
    return None if report is None else judged


def _fingerprints(prepared: Sequence[PreparedTask]) -> dict[str, dict[str, str]]:
    return {
        p.task.name: {**fingerprint(p.task, p.dataset), **shard_fields(p.fingerprint)}
        for p in prepared
    }
