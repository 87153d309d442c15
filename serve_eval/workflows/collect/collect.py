"""Collect the results of run folders and logs below some paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import REPORT_FILE, SUITE_RUNS
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.evaluation.storage.reports.suite_files import holds_suite, read_suite
from serve_eval.evaluation.storage.run_folder import holds_run
from serve_eval.report.summary.figures import count
from serve_eval.schema import Report, Scalar, TaskReport
from serve_eval.workflows.collect.rows import CollectedRow
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

    Folders are searched, in the order of their names; links to folders are not followed. `notify`
    receives a line about each run or log that cannot be read. Raises RunFolderError for a path that
    does not exist.
    """
    for path in paths:
        if not path.exists():
            raise RunFolderError(f"{path}: there is no such file or folder")
        if path.is_dir():
            yield from _collect_folder(path, notify)
        else:
            yield from _read_log(path, notify)


def _collect_folder(folder: Path, notify: Callable[[str], None]) -> Iterator[CollectedRow]:
    for place, below, files in os.walk(folder):
        here = Path(place)
        below.sort()
        if holds_run(here):
            below.clear()  # its logs are those of its servers
            if REPORT_FILE in files:
                yield from _read_run(here, notify)
            else:
                notify(f"warning: {here} is not finished, and is left out")
            continue
        for name in sorted(files):
            if name.endswith(LOGS):
                yield from _read_log(here / name, notify)


def _read_run(run: Path, notify: Callable[[str], None]) -> Iterator[CollectedRow]:
    try:
        report = read_report(run)
    except RunFolderError as error:
        notify(f"warning: {error}")
        return
    attributes = _find_attributes(run, notify)
    yield from (describe_task(report, task, run, attributes) for task in report.tasks)


def _find_attributes(run: Path, notify: Callable[[str], None]) -> Mapping[str, Scalar]:
    """Return the attributes of a run in the folder of a suite; none of any other run."""
    place = run.resolve()
    suite = place.parent.parent
    if place.parent.name != SUITE_RUNS or not holds_suite(suite):
        return {}
    try:
        runs = read_suite(suite).runs
    except RunFolderError as error:
        notify(f"warning: {run} has no attributes of its suite: {error}")
        return {}
    return next((one.attributes for one in runs if one.name == place.name), {})


def describe_task(
    report: Report, task: TaskReport, run: Path, attributes: Mapping[str, Scalar]
) -> CollectedRow:
    """Return the row of a task of a run, with the figures that its rule judges by."""
    result, verdict, spec = task.result, task.verdict, report.plan.accuracy_spec
    low, high = result.interval or (None, None)
    # The acceptance length may have failed the task: `verdict.rule` is not the rule of the plan.
    by_threshold = report.plan.verdict.name in BY_THRESHOLD
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
        attributes=attributes,
    )


def _find_margin(report: Report, task: TaskReport) -> float | None:
    """Return the drop that the rule of a run must exclude, if it has one."""
    rule, paired = report.plan.verdict, task.verdict.paired
    if rule.name not in WITH_MARGIN:
        return None
    return paired.margin if paired is not None else _as_number(rule.options.get("margin"))


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
