"""Read the folders of shards, and check that they are all the parts of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.plan.shard import whole_fingerprint
from serve_eval.schema import Plan, Shard
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.json_files import list_differing

SHOWN = 20
"""Most lines of a message about differences."""
FREE_FIELDS = (*(f for f in run_folder.FREE_FIELDS if not f.startswith("repeats")), "shard")
"""Fields of the plan that may differ between shards. The number of repeats may not."""


@dataclass(frozen=True, slots=True)
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
