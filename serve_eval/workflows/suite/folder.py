"""The folder of a suite: locked while it is in use, and bound to one suite.

suite.json            the runs with their plans and the waivers, signed by the user (see ownership)
runs/<name>/          one ordinary run folder per run
servers/<number>/     logs of the servers that several runs share
suite_report.json     the report, after every run was tried
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.rerun import Rerun
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.differences import differences
from serve_eval.evaluation.storage.file_names import SERVERS, SUITE_FILE, SUITE_RUNS
from serve_eval.evaluation.storage.folder_lock import check_free
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.evaluation.storage.reports.suite_files import (
    holds_suite,
    read_suite,
    set_aside_report,
    write_suite,
)
from serve_eval.evaluation.storage.run_folder import FREE_FIELDS
from serve_eval.schema import Plan, Report, Suite, SuiteRun, TaskReport, is_mutable


@contextmanager
def open_folder(path: Path, suite: Suite) -> Iterator[Path]:
    """Create or reopen the folder, and lock it until the end of the block.

    The suite is saved with a signature, because this user provided or trusted it. It may have more
    runs than the last time. Names, waivers and attributes may differ, because they change no
    request. Raises RunFolderError if another process uses the folder, or if it contains other files
    or runs that the suite lacks or changes (the message lists them).
    """
    with run_folder.hold(path, SUITE_FILE, "suite"):
        if holds_suite(path):
            _check_kept(path, read_suite(path), suite)
        set_aside_report(path)
        write_suite(path, suite)
        try:
            for folder in (SUITE_RUNS, SERVERS):
                (path / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{error.filename}: cannot be used as a folder: {error.strerror}"
            ) from error
        yield path


def check_folder(path: Path, suite: Suite) -> None:
    """Raise RunFolderError if `open_folder` would refuse the folder. Nothing is written."""
    check_free(path, SUITE_FILE, "suite")
    if holds_suite(path):
        _check_kept(path, read_suite(path), suite)


def read_kept_report(path: Path, run: SuiteRun, rerun: Rerun = "failed") -> Report | None:
    """Return the report of a finished run, or None if the run has to continue.

    A finished run has the same plan, an answer to every sample, unchanged cases, and nothing that
    `rerun` sends again. The address of a running endpoint may differ, because the run may have been
    finished by hand elsewhere.
    """
    try:
        report = read_report(path / SUITE_RUNS / run.name)
    except RunFolderError:
        return None
    model = run.plan.model or report.plan.model  # The endpoint's model if the plan names none.
    same = _describe_asked(report.plan) == _describe_asked(replace(run.plan, model=model))
    living = [task for task in report.tasks if is_mutable(task.spec.name)]
    if rerun == "all" or (living and rerun in ("changed", "version")):
        return None
    if (
        not same
        or any(task.result.failed for task in report.tasks)
        or not _as_they_were(run.plan, report, living)
    ):
        return None
    return report


def _as_they_were(plan: Plan, report: Report, living: Sequence[TaskReport]) -> bool:
    """Return True if the cases and repeats of a plan are those of its report."""
    specs = {spec.name: spec for spec in plan.tasks if is_mutable(spec.name)}
    if set(specs) != {task.spec.name for task in living} or any(
        plan.times(task.result.task) != report.plan.times(task.result.task) for task in living
    ):
        return False
    if not living:
        return True
    try:
        prepared = prepare(replace(plan, no_reference=True, tasks=tuple(specs.values())))
    except ServeEvalError:
        return False  # The run reports the error.
    return [p.fingerprint for p in prepared] == [dict(task.fingerprint) for task in living]


def _check_kept(path: Path, old: Suite, new: Suite) -> None:
    found, wanted = (
        {run.name: _describe_asked(run.plan, address=True) for run in suite.runs}
        for suite in (old, new)
    )
    lines = [f"run {name} is not in this suite" for name in found if name not in wanted]
    lines += [
        line
        for name in found
        if name in wanted
        for line in differences(found[name], wanted[name], name)
    ]
    if lines:
        shown = "\n".join(
            f"  {line}" for line in [*lines[:20], *(["..."] if len(lines) > 20 else [])]
        )
        raise RunFolderError(
            f"{path} holds another suite:\n{shown}",
            hint=(
                "Keep the runs of the folder, and add new ones: only these are asked. Or use"
                " another folder with -o: serve-eval export of both makes one table. --resume"
                " continues the suite of the folder."
            ),
        )


def _describe_asked(plan: Plan, *, address: bool = False) -> Any:
    """Return what a plan asks, as JSON values, without speed, connection and data locations."""
    content = msgspec.json.decode(msgspec.json.encode(plan))
    kept = {"early_stop", "repeats", "repeats_of"}  # A suite does not resume a finished run.
    for field in {*FREE_FIELDS} - kept:
        del content[field]
    content["repeats_of"] = {
        name: times for name, times in content["repeats_of"].items() if not is_mutable(name)
    }
    # `_as_they_were` checks the mutable tasks.
    content["tasks"] = [task for task in content["tasks"] if not is_mutable(task["name"])]
    if not address and plan.launcher.name == "external":
        content["launcher"]["options"].pop("base_url", None)
    return content
