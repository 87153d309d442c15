"""Find the unfinished run of a plan, which the same command continues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.settle import settle
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Plan
from serve_eval.storage.file_names import PLAN_FILE
from serve_eval.storage.reports.report_file import has_report
from serve_eval.storage.run_folder import list_differences, plan_and_owner
from serve_eval.storage.unfinished import list_unfinished


@with_scope
async def find_unfinished_run(plan: Plan, environ: Mapping[str, str]) -> tuple[Path, float] | None:
    """Return the folder in outputs/ that this plan would resume, and the age of its last answer.

    It is the newest run that this user began with the same plan, endpoint, data and protocol, and
    that has answers but no report. Returns None if there is none, or if the plan has a problem,
    which the run reports.
    """
    for folder, age_s in list_unfinished(PLAN_FILE, has_report):
        try:
            saved, own = plan_and_owner(folder)
            if not own or saved.launcher != plan.launcher or saved.model != plan.model:
                continue
            settled = await settle(plan, folder, environ)
            prepared = await asyncio.to_thread(prepare, settled)
            prints = {one.task.name: one.fingerprint for one in prepared}
            if not list_differences(folder, settled, prints):
                return folder, age_s
        except ServeEvalError:
            continue
    return None
