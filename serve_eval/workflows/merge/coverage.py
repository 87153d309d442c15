"""Prove that the shards of a task hold each sample, once, and in the shard that it belongs to."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plan.shard import list_places
from serve_eval.schema import Sample, Shard
from serve_eval.shell_words import quote_path
from serve_eval.storage import sessions
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import read
from serve_eval.storage.records.answer_origins import keep_standing, run_proofs
from serve_eval.workflows.merge.shards import ShardFolder


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
    may have no samples.
    """
    owners = _owners(prepared.dataset.samples, shards[0].shard.count)
    seen = bytearray(len(places))
    lines: list[str] = []
    for shard in shards:
        lines += _foreign(shard, prepared.task.name, places, owners, seen)
    if not lines and not _all_lack_ability(shards, prepared.task.name):
        lines += _missing(shards, prepared.task.name, owners, seen)
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
    lacking = dict.fromkeys((one.shard.number for one in shards), 0)
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


def _all_lack_ability(shards: Sequence[ShardFolder], task: str) -> bool:
    """Return True if the endpoints of all shards lack an ability that the task needs."""
    return all(task in sessions.read_unsupported(shard.path) for shard in shards)
