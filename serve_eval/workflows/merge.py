"""Join the shards of a run, and judge them as one run."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import DatasetError, RunFolderError
from serve_eval.evaluation.engine.lane import arrange, task_seed
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.frozen import freeze_places
from serve_eval.plan.chosen_samples import list_places, whole_fingerprint
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Plan, Report, Sample, Shard
from serve_eval.shell_words import quote_path
from serve_eval.storage import order_seed, run_folder, sessions
from serve_eval.storage.answer_origins import keep_standing, run_proofs
from serve_eval.storage.copied_run import (
    check_copy,
    end_copy,
    mark_copy,
    merge_journals,
    merge_other_records,
    open_copy,
)
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import read
from serve_eval.storage.json_files import list_differing
from serve_eval.storage.report_file import write_report
from serve_eval.storage.run_folder import CopyMark

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


SHOWN = 20
"""Most lines of a message about differences."""
FREE_FIELDS = (*(f for f in run_folder.FREE_FIELDS if not f.startswith("repeats")), "shard")
"""Fields of the plan that may differ between shards. The number of repeats may not."""


@freeze_places
class ShardFolder:
    """The folder of a shard.

    `own`: this user saved its plan there. `fingerprints` are those of the whole run, and `seed` is
    that of the random order.
    """

    path: Path
    plan: Plan
    shard: Shard
    own: bool
    fingerprints: dict[str, dict[str, str]]
    seed: int

    @property
    def name(self) -> str:
        return f"shard {self.shard} ({self.path})"


def read_shards(folders: Sequence[Path]) -> list[ShardFolder]:
    """Return the shards in these folders, by their numbers.

    Raises RunFolderError if a folder holds no shard or is in use, if a shard is missing or given
    twice, or if two are parts of different runs. The message names what differs.
    """
    found = sorted((_read_shard(path) for path in folders), key=lambda one: one.shard.number)
    first = found[0]
    for other in found[1:]:
        if other.shard.count != first.shard.count:
            raise RunFolderError(
                f"{first.name} and {other.name} are of different counts",
                hint="Give all shards of one run, and no others.",
            )
    for one, other in pairwise(found):
        if one.shard == other.shard:
            raise RunFolderError(
                f"shard {one.shard} is given twice: {one.path} and {other.path}",
                hint="Give each shard once.",
            )
    for other in found[1:]:
        _check_alike(first, other)
    _check_complete(found)
    return found


def _read_shard(path: Path) -> ShardFolder:
    plan, own = run_folder.plan_and_owner(path)
    if plan.shard is None:
        raise RunFolderError(
            f"{path} is not a shard: its run asked all samples",
            hint="Give folders of runs with --shard.",
        )
    run_folder.check_unused(path)
    fingerprints = {
        task: whole_fingerprint(prints)
        for task, prints in run_folder.read_fingerprints(path).items()
    }
    seed = order_seed.read_seeds(path, plan).samples
    return ShardFolder(path, plan, plan.shard, own, fingerprints, seed)


def _check_complete(found: Sequence[ShardFolder]) -> None:
    count = found[0].shard.count
    have = {one.shard.number for one in found}
    if lacking := [number for number in range(1, count + 1) if number not in have]:
        listed = ", ".join(map(str, lacking[:SHOWN])) + (", ..." if len(lacking) > SHOWN else "")
        few = len(lacking) == 1
        raise RunFolderError(
            f"shard{'' if few else 's'} {listed} of {count} {'is' if few else 'are'} missing",
            hint=f"Run with --shard {lacking[0]}/{count}, and give the folder too.",
        )


def _check_alike(a: ShardFolder, b: ShardFolder) -> None:
    """Raise RunFolderError, with what differs, if two shards are parts of different runs."""
    differing = list_differing(_extract_common(a), _extract_common(b))
    if not differing:
        return
    lines = [f"  {_describe(path)}: {in_a} and {in_b}" for path, in_a, in_b in differing]
    more = [f"  ... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    raise RunFolderError(
        f"{a.name} and {b.name} are parts of different runs:\n"
        + "\n".join((*lines[:SHOWN], *more)),
        hint="Give shards of one plan and one data set.",
    )


def _extract_common(one: ShardFolder) -> Any:
    """Return what the shards of a run have in common, as JSON values."""
    content = msgspec.json.decode(
        msgspec.json.encode({"plan": one.plan, "fingerprints": one.fingerprints})
    )
    for field in FREE_FIELDS:
        content["plan"].pop(field, None)
    content["plan"]["launcher"]["options"].pop("base_url", None)
    return content


def _describe(path: str) -> str:
    """Return what differs, with words for the data."""
    section, _, field = path.partition(".")
    task, _, name = field.rpartition(".")
    if section == "fingerprints" and name == "samples":
        return f"the samples of {task}"
    return path.removeprefix("fingerprints.")


def with_repeats(prepared: PreparedTask, times: int) -> Sequence[Sample]:
    """Return the samples of a task as they are asked, with their repeats."""
    samples = prepared.dataset.samples
    return samples if times == 1 else Repeated(samples, times)


def check_coverage(
    shards: Sequence[ShardFolder], prepared: PreparedTask, places: Mapping[str, int]
) -> None:
    """Raise RunFolderError unless each shard holds all of its samples, and no others.

    `places` has the place of every sample id among the samples and their repeats. A sample counts
    if it has an answer or a failure. A task that the endpoints of all shards lack an ability for
    may have no samples. A shard that a limit ended may lack some.
    """
    owners = _owners(prepared.dataset.samples, shards[0].shard.count)
    seen = bytearray(len(places))
    lines: list[str] = []
    for shard in shards:
        lines += _foreign(shard, prepared.task.name, places, owners, seen)
    whole = [one for one in shards if not _was_ended(one)]
    if not lines and not _all_lack_ability(shards, prepared.task.name):
        lines += _missing(whole, prepared.task.name, owners, seen)
    if lines:
        raise RunFolderError(
            "\n".join(lines), hint="Nothing was merged: a part of the samples is never judged."
        )


def _owners(samples: Sequence[Sample], count: int) -> array[int]:
    """Return the number of the shard of each sample."""
    owners = array("i", bytes(4 * len(samples)))
    for number in range(1, count + 1):
        for place in list_places(samples, Shard(number, count)):
            owners[place] = number
    return owners


def _foreign(
    shard: ShardFolder,
    task: str,
    places: Mapping[str, int],
    owners: Sequence[int],
    seen: bytearray,
) -> Iterator[str]:
    """Mark the samples of a shard as seen. Yield lines about those that are not its own."""
    file, unknown, others = samples_file(shard.path, task), [], []
    for record in keep_standing(read(file), run_proofs(shard.path)) if file.exists() else ():
        place = places.get(record.id)
        if place is None:
            unknown.append(record.id)
        elif owners[place % len(owners)] != shard.shard.number:
            others.append((record.id, owners[place % len(owners)]))
        else:
            seen[place] = 1
    if unknown:
        yield (
            f"{shard.name}: {task}: {len(set(unknown))} samples are not in the data, such as"
            f" {unknown[0]}"
        )
    if others:
        sample, owner = others[0]
        yield (
            f"{shard.name}: {task}: {len({one for one, _ in others})} samples belong to other"
            f" shards, such as {sample} to shard {owner}/{shard.shard.count}: they would count"
            " twice"
        )


def _missing(
    shards: Sequence[ShardFolder], task: str, owners: Sequence[int], seen: bytearray
) -> Iterator[str]:
    """Yield a line for each shard that lacks samples."""
    lacking: Counter[int] = Counter()
    for place, found in enumerate(seen):
        if not found:
            lacking[owners[place % len(owners)]] += 1
    for shard in shards:
        if count := lacking[shard.shard.number]:
            of = sum(owner == shard.shard.number for owner in owners) * (len(seen) // len(owners))
            why = sessions.read_unsupported(shard.path).get(task)
            lost = "" if why is None else f" (its endpoint lacks {why.need}, the others' do not)"
            yield (
                f"{shard.name}: {task}: {count} of {of} samples are missing{lost}; finish it with"
                f" serve-eval run --resume {quote_path(shard.path)}"
            )


def _was_ended(shard: ShardFolder) -> bool:
    """Return True if a limit ended the last session of a shard, so that samples were not asked."""
    loads = sessions.loads(shard.path)
    return bool(loads and loads[-1].ended_by)


def _all_lack_ability(shards: Sequence[ShardFolder], task: str) -> bool:
    """Return True if the endpoints of all shards lack an ability that the task needs."""
    return all(task in sessions.read_unsupported(shard.path) for shard in shards)
