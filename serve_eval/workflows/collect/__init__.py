"""Collect the results of run folders and logs below some paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.capabilities.sampling import read_kept
from serve_eval.report.summary.figures import count
from serve_eval.schema import Plan, Report, Scalar, SuiteRow, TaskReport, Verdict, VerdictOutcome
from serve_eval.series.deployments import find_pass_at_all, find_seed
from serve_eval.storage.file_names import REPORT_FILE, SUITE_RUNS
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.run_folder import holds_run
from serve_eval.storage.story_files import SUITE
from serve_eval.storage.story_results import find_suite_report, read_suite
from serve_eval.verdicts.many_tests import find_test
from serve_eval.workflows.collect.document import CollectedRow
from serve_eval.workflows.collect.trtllm_log import read_trtllm_log

LOGS = (".log", ".txt", ".out")
"""Endings of files that are read as logs, below a folder. A file that is named is always read."""
MOST_LOG_BYTES = 1 << 30
MOST_SHOWN, LONGEST = 3, 120
"""Lines of a log that are shown because they could not be read, and characters of one."""
BY_THRESHOLD, WITH_MARGIN = ("classic",), ("paired", "noninferiority")
"""The rules that judge by a threshold, and those that judge by a margin."""


def collect(paths: Sequence[Path], notify: Callable[[str], None]) -> Iterator[CollectedRow]:
    """Yield a row for each task of the finished runs and for each result in the logs.

    Folders are searched in the order of their names, runs of a suite in its order; links to folders
    are not followed. `notify` receives a line about each run or log that cannot be read, and at the
    end the number of runs that are left out, with their folders. Raises RunFolderError for a path
    that does not exist.
    """
    left_out: list[Path] = []
    for path in paths:
        if not path.exists():
            raise RunFolderError(f"{path}: there is no such file or folder")
        if path.is_dir():
            yield from _collect_folder(path, notify, left_out)
        else:
            yield from _read_log(path, notify)
    if left_out:
        notify(f"left out: {count(len(left_out), 'run')}: {', '.join(map(str, left_out))}")


def _collect_folder(
    folder: Path, notify: Callable[[str], None], left_out: list[Path]
) -> Iterator[CollectedRow]:
    shown: set[Path] = set()
    for place, below, files in os.walk(folder):
        here = Path(place)
        _sort(here, below)
        if SUITE.has_plan(here):
            for row in _list_lost(here, notify):
                shown.add(Path(row.source))
                yield row
        if holds_run(here):
            below.clear()  # its logs are those of its servers
            if REPORT_FILE in files:
                yield from _read_run(here, notify, left_out)
            elif here in shown:
                notify(f"warning: an error ended {here}: its rows have no value")
            else:
                notify(f"warning: {here} is not finished, and is left out")
                left_out.append(here)
            continue
        for name in sorted(files):
            if name.endswith(LOGS):
                yield from _read_log(here / name, notify)


def _sort(here: Path, below: list[str]) -> None:
    """Sort the names of folders; those of the runs of a suite are in its order."""
    below.sort()
    if here.name != SUITE_RUNS or not SUITE.has_plan(here.parent):
        return
    with suppress(RunFolderError):  # Each of its runs says so.
        order = {run.name: i for i, run in enumerate(read_suite(here.parent).runs)}
        below.sort(key=lambda name: order.get(name, len(order)))


def _read_run(
    run: Path, notify: Callable[[str], None], left_out: list[Path]
) -> Iterator[CollectedRow]:
    try:
        report = read_report(run)
    except RunFolderError as error:
        notify(f"warning: {error}")
        left_out.append(run)
        return
    attributes, rows = _find_suite(run, notify)
    for task in report.tasks:
        yield describe_task(report, task, run, attributes, rows.get(task.result.task))


def _find_suite(
    run: Path, notify: Callable[[str], None]
) -> tuple[Mapping[str, Scalar], Mapping[str, SuiteRow]]:
    """Return the attributes and the rows by task of a run in a suite; none of any other run."""
    place = run.resolve()
    suite = place.parent.parent
    if place.parent.name != SUITE_RUNS or not SUITE.has_plan(suite):
        return {}, {}
    try:
        runs, report = read_suite(suite).runs, find_suite_report(suite)
    except RunFolderError as error:
        notify(f"warning: {run} has no attributes of its suite: {error}")
        return {}, {}
    own = next((one.attributes for one in runs if one.name == place.name), {})
    rows = () if report is None else report.rows
    return own, {row.task: row for row in rows if row.run == place.name}


def _list_lost(place: Path, notify: Callable[[str], None]) -> Iterator[CollectedRow]:
    """Yield a row for each task of the runs of a suite that an error ended."""
    try:
        report, planned = find_suite_report(place), read_suite(place).runs
    except RunFolderError as error:
        notify(f"warning: {error}")
        return
    plans = {run.name: run.plan for run in planned}
    lost = () if report is None else {run.name for run in report.runs if run.error}
    for row in () if report is None else report.rows:
        if row.run in lost and not has_report(place / SUITE_RUNS / row.run):
            plan = plans.get(row.run)
            yield CollectedRow(
                source=str(place / SUITE_RUNS / row.run),
                kind="run",
                model=row.model,
                task=row.task,
                verdict=row.own.value,
                rule=None if row.own is VerdictOutcome.ERROR else row.rule,
                suite_verdict=row.outcome.value,
                reason="; ".join(row.reasons),
                effort=None if plan is None else _find_effort(plan),
                attributes=row.attributes,
            )


def describe_task(
    report: Report,
    task: TaskReport,
    run: Path,
    attributes: Mapping[str, Scalar],
    row: SuiteRow | None = None,
) -> CollectedRow:
    """Return the row of a task of a run, with the figures that its rule judges by.

    `row` is its judgement in a suite.
    """
    result, verdict, spec = task.result, task.verdict, report.plan.accuracy_spec
    low, high = result.interval or (None, None)
    # The acceptance length may have failed the task: `verdict.rule` is not the rule of the plan.
    by_threshold = _find_rule(report, verdict) in BY_THRESHOLD
    return CollectedRow(
        source=str(run),
        kind="run",
        model=report.endpoint.model or report.plan.model,
        task=result.task,
        verdict=verdict.outcome.value,
        metric=result.metric.name,
        value=result.value,
        low=low,
        high=high,
        reference=verdict.reference,
        threshold=verdict.threshold if by_threshold else None,
        theta=verdict.theta if by_threshold else None,
        alpha=verdict.alpha,
        beta=verdict.beta if by_threshold else None,
        sigma=verdict.sigma if by_threshold else None,
        num_samples=verdict.num_samples if by_threshold else None,
        planned=result.planned,
        scored=result.scored,
        failed=result.failed,
        truncated=result.truncated,
        rule=verdict.rule,
        quant_algo=spec.quant_algo,
        kv_cache_quant_algo=spec.kv_cache_quant_algo,
        base_url=report.endpoint.base_url,
        server_version=report.endpoint.info.version,
        started_at=report.started_at,
        wall_s=report.wall_s,
        margin=_find_margin(report, task),
        suite_verdict=None if row is None else row.outcome.value,
        p=find_test(verdict)[0],
        p_holm=None if row is None else row.p_holm,
        tests=None if row is None else row.tests,
        finding=None if row is None or row.p_holm is None else row.finding,
        reason="; ".join(verdict.reasons if row is None else row.reasons) or None,
        sampling_seed=int(seed) if (seed := find_seed(task)) else None,
        **_describe_repeats(task),
        cut_value=result.cut_value if result.cut else None,
        server_adds=", ".join(read_kept(task)) or None,
        effort=_find_effort(report.plan),
        attributes=attributes,
    )


def _find_effort(plan: Plan) -> str | None:
    return None if plan.preset is None else plan.preset.effort or None


def _describe_repeats(task: TaskReport) -> dict[str, Any]:
    """Return the columns about several answers to each prompt."""
    told = task.result.stability
    if told is None:
        return {}
    return {
        "repeats": told.repeats,
        "sd_repeats": told.sd,
        "pass_at_repeats": find_pass_at_all(told),
        "vote": told.majority,
    }


def _find_margin(report: Report, task: TaskReport) -> float | None:
    """Return the drop that the rule of a run must exclude, if it has one."""
    paired = task.verdict.paired
    if _find_rule(report, task.verdict) not in WITH_MARGIN:
        return None
    return paired.margin if paired else _as_number(report.plan.verdict.options.get("margin"))


def _find_rule(report: Report, verdict: Verdict) -> str:
    """Return the rule that compared the values, also if the acceptance length failed the task."""
    if report.plan.rule_named or verdict.other is None:
        return report.plan.verdict.name
    return "paired" if verdict.other.rule == "classic" else "classic"


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _read_log(file: Path, notify: Callable[[str], None]) -> Iterator[CollectedRow]:
    try:
        if file.stat().st_size > MOST_LOG_BYTES:
            notify(f"warning: {file} is larger than 1 GiB, and is left out")
            return
        unread: list[str] = []
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield from read_trtllm_log(lines, str(file), unread.append)
        if unread:
            shown = "; ".join(line[:LONGEST] for line in unread[:MOST_SHOWN])
            notify(
                f"warning: {file}: {count(len(unread), 'line')} with a metric could not be read,"
                f" such as: {shown}"
            )
    except OSError as error:
        notify(f"warning: {file}: cannot be read: {error.strerror}")
