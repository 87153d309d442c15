"""Join the shards of a run in a new run folder, and judge it as one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from serve_eval.errors import DatasetError, RunFolderError
from serve_eval.evaluation.engine.lane import arrange, task_seed
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Plan, Report, Sample
from serve_eval.storage import order_seed, sessions
from serve_eval.storage.copied_run import (
    check_copy,
    end_copy,
    mark_copy,
    merge_journals,
    merge_other_records,
    open_copy,
)
from serve_eval.storage.json_files import list_differing
from serve_eval.storage.reports.report_file import write_report
from serve_eval.storage.run_folder import CopyMark
from serve_eval.workflows.merge.coverage import check_coverage, with_repeats
from serve_eval.workflows.merge.shards import ShardFolder

NO_EARLY_STOP = "no early stop: shards ask all of their samples"
NO_COMMON_ORDER = (
    "the shards asked in different random orders, so the run is not checked for a decline over"
    " time; each shard's report has a check of its own (for one order of all shards, give each"
    " the same limits.order_seed)"
)


def plan_of_whole(shards: Sequence[ShardFolder]) -> Plan:
    """Return the plan of the run that these shards are parts of.

    Where their plans may differ, it is that of the first shard.
    """
    return replace(shards[0].plan, shard=None, early_stop=None)


@with_scope
def merge(
    shards: Sequence[ShardFolder], plan: Plan, out_dir: Path, *, strict: bool = False
) -> Report:
    """Write a run folder with the answers of all shards, judge it, and return its report.

    `plan` is that of `plan_of_whole`, perhaps with other folders of data and references. The result
    does not depend on the order of the shards or on the times at which they ran. Raises
    RunFolderError if samples are missing or in two shards, or if `out_dir` is neither empty nor of
    the same merge, and DatasetError if the data is not that of the shards. Nothing is written then.
    """
    mark = mark_copy([one.path for one in shards], plan)
    check_copy(out_dir, mark)
    prepared = prepare(plan)
    _check_data(shards[0], prepared)
    samples = {p.task.name: with_repeats(p, plan.times(p.task.name)) for p in prepared}
    for p in prepared:
        places = {sample.id: place for place, sample in enumerate(samples[p.task.name])}
        check_coverage(shards, p, places)
    try:
        warnings = _write(shards, plan, prepared, samples, out_dir, mark)
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or out_dir}: cannot be written: {error.strerror}"
        ) from error
    report = _with_times(judge_again(plan, out_dir, strict=strict, asked=True), out_dir)
    if warnings:
        report = replace(report, warnings=(*report.warnings, *warnings))
    write_report(out_dir, report)
    end_copy(out_dir, mark)
    return report


def _check_data(first: ShardFolder, prepared: Sequence[PreparedTask]) -> None:
    """Raise DatasetError if the shards asked other samples than those that are found here."""
    for p in prepared:
        stored = first.fingerprints[p.task.name]
        if differing := list_differing(stored, p.fingerprint):
            told = "; ".join(f"{name}: {was} and {now}" for name, was, now in differing)
            raise DatasetError(
                f"{p.task.name}: the shards and the data here differ: {told}",
                hint="Merge with the data that the shards used: --dataset-root.",
            )


def _write(
    shards: Sequence[ShardFolder],
    plan: Plan,
    prepared: Sequence[PreparedTask],
    samples: Mapping[str, Sequence[Sample]],
    out_dir: Path,
    mark: CopyMark,
) -> list[str]:
    """Write the folder of the run. Return warnings about what the shards do not allow."""
    paths, fingerprints = (
        [one.path for one in shards],
        {p.task.name: p.fingerprint for p in prepared},
    )
    warnings = [] if shards[0].plan.early_stop is None else [NO_EARLY_STOP]
    own = all(one.own for one in shards)
    with open_copy(out_dir, mark, plan, fingerprints, own=own) as folder:
        common = order_seed.note_merged(folder, (one.seed for one in shards))
        sessions.copy_sessions({str(one.shard): one.path for one in shards}, folder)
        merge_other_records(paths, folder, fingerprints)
        for task, asked in samples.items():
            merge_journals(paths, folder, task, _rank(plan, task, asked, shards[0].seed))
    if not common and plan.limits.order == "random":
        warnings.append(NO_COMMON_ORDER)
    noted = sessions.read_sessions(out_dir)
    versions = sorted({one.endpoint.info.version or "unknown" for one in noted})
    if len(versions) > 1:
        warnings.append(f"servers of several versions answered the shards: {', '.join(versions)}")
    return warnings


def _rank(plan: Plan, task: str, samples: Sequence[Sample], seed: int) -> dict[str, int]:
    """Return the rank of each sample in the order in which one run starts them."""
    order = arrange(samples, range(len(samples)), plan.limits.order, task_seed(seed, task))
    return {samples[place].id: rank for rank, place in enumerate(order)}


def _with_times(report: Report, run: Path) -> Report:
    """Return the report with the time from the first session's start to the last one's end."""
    noted = sessions.read_sessions(run)
    begun = [datetime.fromisoformat(one.started_at) for one in noted if one.started_at]
    if not begun:
        return report
    ended = [
        datetime.fromisoformat(one.started_at) + timedelta(seconds=one.load.wall_s)
        for one in noted
        if one.started_at and one.load is not None
    ]
    wall_s = (max(ended) - min(begun)).total_seconds() if ended else report.wall_s
    return replace(report, started_at=min(begun).isoformat(timespec="seconds"), wall_s=wall_s)
