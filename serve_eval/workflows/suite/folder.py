"""A suite's folder: locked while it is used, bound to one suite.

suite.json            the runs with their plans, and the waivers, signed by who made it (see ownership)
runs/<name>/          an ordinary run folder each
servers/<number>/     logs of the servers that several runs shared
suite_report.json     the report, once every run was tried
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
from serve_eval.evaluation.storage.file_names import SERVERS, SUITE_FILE, SUITE_RUNS
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.evaluation.storage.reports.suite_files import (
    drop_suite_report,
    holds_suite,
    read_suite,
    write_suite,
)
from serve_eval.evaluation.storage.run_folder import FREE_FIELDS, differences
from serve_eval.schema import Plan, Report, Suite, SuiteRun, TaskReport, is_mutable


@contextmanager
def open_folder(path: Path, suite: Suite) -> Iterator[Path]:
    """The folder, created or found again, locked until the end of the block.

    The suite is that of this user, who gave it or said that it is trusted: it is saved with a
    signature. Names, waivers and attributes may differ from the last time: they change nothing that
    is asked. Raises RunFolderError when another process has the folder, or when it holds other
    files or other runs (it says which).
    """
    with run_folder.hold(path, SUITE_FILE, "suite"):
        if holds_suite(path):
            _check_same(path, read_suite(path), suite)
        drop_suite_report(path)  # it tells of an earlier state
        write_suite(path, suite)
        try:
            for folder in (SUITE_RUNS, SERVERS):
                (path / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{error.filename}: cannot be used as a folder: {error.strerror}"
            ) from error
        yield path


def read_kept_report(path: Path, run: SuiteRun, rerun: Rerun = "failed") -> Report | None:
    """The report of a run that is finished: of the same plan, with an answer to every sample, of
    cases that are as they were, and with nothing that `rerun` asks again. None: go on with it.

    The address of a running endpoint may be another one, for a run that was finished by hand
    elsewhere.
    """
    try:
        report = read_report(path / SUITE_RUNS / run.name)
    except RunFolderError:
        return None
    model = run.plan.model or report.plan.model  # found at the endpoint where the plan names none
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
    """Return whether the cases of a plan are those of its report, and asked as often."""
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
        return False  # the run says what is wrong
    return [p.fingerprint for p in prepared] == [dict(task.fingerprint) for task in living]


def _check_same(path: Path, old: Suite, new: Suite) -> None:
    found, wanted = (
        {run.name: _describe_asked(run.plan, address=True) for run in suite.runs}
        for suite in (old, new)
    )
    lines = [f"the run {name} is not in this suite" for name in found if name not in wanted]
    lines += [f"the run {name} is not in the folder's" for name in wanted if name not in found]
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
            hint="Use another folder with -o, or go on with what that suite was: --resume.",
        )


def _describe_asked(plan: Plan, *, address: bool = False) -> Any:
    """What a plan asks, as JSON values: without how fast, how reached and where the data lies."""
    content = msgspec.json.decode(msgspec.json.encode(plan))
    kept = {"early_stop", "repeats", "repeats_of"}  # a finished run of a suite is not gone on with
    for field in {*FREE_FIELDS} - kept:
        del content[field]
    content["repeats_of"] = {
        name: times for name, times in content["repeats_of"].items() if not is_mutable(name)
    }
    content["tasks"] = [
        task for task in content["tasks"] if not is_mutable(task["name"])
    ]  # see `_as_they_were`
    if not address and plan.launcher.name == "external":
        content["launcher"]["options"].pop("base_url", None)
    return content
