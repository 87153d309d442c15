"""Split the samples of a run into shards: by their ids, in parts whose sizes differ by at most one.

Each shard is a run of its own, in a folder of its own. `workflows/merge` joins them.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_eval.errors import PlanError
from serve_eval.schema import Plan, Sample, Shard

ARRAY_TASK, ARRAY_JOB = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_JOB_ID"
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
GROUP = "SERVE_EVAL_SHARD_GROUP"
"""Variable with a name that the shards of one run have in common, to draw the same order."""
MOST = 100_000
SHARD, WHOLE = "shard", "samples_of_all_shards"
"""Fields of the fingerprint of a shard, next to the `samples` of its own."""
_GIVEN = re.compile(r"([0-9]{1,9}|auto)/([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The samples of a shard: their `places` among all `total` planned samples, ascending."""

    places: Sequence[int]
    total: int


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Return the shard of a value such as "3/16" or "auto/16".

    With `auto`, the number is SLURM_ARRAY_TASK_ID, which must be from 1 to the count, or
    JOB_COMPLETION_INDEX plus 1, which Kubernetes counts from 0. The count is always given: if a
    part of an array is submitted again, SLURM_ARRAY_TASK_COUNT is that of the part. Nothing is
    sharded without this option, since the tasks of an array may be different runs.

    Raises PlanError.
    """
    found = _GIVEN.fullmatch(text.strip())
    if found is None:
        raise PlanError(f"must be NUMBER/COUNT such as 3/16, or auto/COUNT, not {text!r}")
    count = int(found[2])
    if not 1 <= count <= MOST:
        raise PlanError(f"the count must be from 1 to {MOST}, not {count}")
    number = _find_number(count, environ) if found[1] == "auto" else int(found[1])
    if not 1 <= number <= count:
        raise PlanError(f"the number must be from 1 to {count}, not {number}")
    return Shard(number, count)


def _find_number(count: int, environ: Mapping[str, str]) -> int:
    """Return the number of this task of an array, from 1. Raises PlanError."""
    task, index = environ.get(ARRAY_TASK), environ.get(COMPLETION_INDEX)
    if task is not None and index is not None:
        raise PlanError(
            f"auto: {ARRAY_TASK} and {COMPLETION_INDEX} are both set; give the number itself"
        )
    for name, value, offset in ((ARRAY_TASK, task, 0), (COMPLETION_INDEX, index, 1)):
        if value is None:
            continue
        number = int(value) + offset if value.isascii() and value.isdecimal() else 0
        if not 1 <= number <= count:
            indices = f"{1 - offset} to {count - offset}"
            array_of = f", as with sbatch --array=1-{count}" if name == ARRAY_TASK else ""
            raise PlanError(f"auto: {name} is {value!r} and must be from {indices}{array_of}")
        return number
    raise PlanError(
        f"auto: neither {ARRAY_TASK} nor {COMPLETION_INDEX} is set; outside an array, give the"
        " number itself, such as 3/16"
    )


def list_places(samples: Sequence[Sample], shard: Shard) -> array[int]:
    """Return the places of a shard's samples, ascending.

    The samples are sorted by a hash of their ids and dealt out in turn. So a shard holds the same
    samples wherever it runs, and its samples are unrelated to the order of the data.
    """
    import numpy

    keys = array("Q", (_key(sample.id) for sample in samples))
    by_key = numpy.argsort(numpy.frombuffer(keys, dtype=numpy.uint64), kind="stable")
    chosen = numpy.sort(by_key[shard.number - 1 :: shard.count])
    return array("q", chosen.astype(numpy.int64).tobytes())


def _key(sample_id: str) -> int:
    digest = hashlib.blake2b(sample_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def shard_fingerprint(
    shard: Shard, whole: Mapping[str, str], part: Mapping[str, str]
) -> dict[str, str]:
    """Return the fingerprint of a shard, with which it is compared only with its like."""
    return {**part, SHARD: str(shard), WHOLE: whole["samples"]}


def shard_fields(prints: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a fingerprint that only a shard has."""
    return {name: prints[name] for name in (SHARD, WHOLE) if name in prints}


def whole_fingerprint(of_shard: Mapping[str, str]) -> dict[str, str]:
    """Return the fingerprint of the run that a shard is a part of."""
    left = {name: value for name, value in of_shard.items() if name not in (SHARD, WHOLE)}
    return {**left, "samples": of_shard[WHOLE]}


def seed_of_group(plan: Plan, environ: Mapping[str, str]) -> int | None:
    """Return the seed of the random order that all shards of a run have in common.

    None for a run that is no shard, and for shards without a common name. The order of such a shard
    is its own.
    """
    name = environ.get(GROUP) or environ.get(ARRAY_JOB)
    if plan.shard is None or plan.limits.order_seed is not None or not name:
        return plan.limits.order_seed
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
