"""Choose the samples that a plan asks: by their ids, with repeats, or in shards.

`samples` of a plan is a list of ids, a mapping of tasks to such lists, or a file of ids: one per
line, or JSON with an `id` in each object, which the files scores/ and samples/ of a run folder are,
and what `serve-eval show --json` prints.

Each shard is a run of its own, in a folder of its own. `workflows/merge` joins them.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.cases.planned import PlannedCases
from serve_eval.errors import PlanError
from serve_eval.plan.plan_file import Problems
from serve_eval.plan.shared_options import USUAL, Times
from serve_eval.plugins import registry
from serve_eval.protocol.shared import find_usual_repeats
from serve_eval.schema import Dataset, Plan, Sample, Shard, Spec, Task, is_mutable

Given = str | Sequence[str | int]
"""The ids, or the text of them or of the path of their file."""
SHOWN = 3
"""Unknown ids that an error names."""
_REPEAT = re.compile(r"#\d+$")
_HASH = "#q"
"""Separates the name of a case from the hash of its question, in the id of a sample."""
_HINT = "Name ids separated by commas, or an existing file of ids."


def read_choice(
    given: Given | Mapping[str, Given] | None, tasks: Iterable[Spec], problems: Problems
) -> dict[str, Any]:
    """Return the ids as fields of a plan: `samples`, or `samples_of` for a mapping of tasks."""
    found: dict[str, tuple[str, ...]] = {}
    by_task = given if isinstance(given, Mapping) else {"": given}
    known = [task.name for task in tasks]
    for name, one in by_task.items():
        path = ("samples", name) if name else ("samples",)
        if name and name not in known and not is_mutable(name):
            problems.add(path, f"is not a task of this run.{registry.nearest(name, known)}")
        try:
            found[name] = () if one is None else _read(one)
        except PlanError as error:
            problems.add(path, str(error))
    everywhere = found.pop("", ())
    return {"samples": everywhere, "samples_of": {**found}}


def _read(given: Given) -> tuple[str, ...]:
    """Return the ids without duplicates. Raises PlanError if there are none."""
    if not isinstance(given, str):
        ids: Iterable[str] = map(str, given)
    elif _exists(Path(given).expanduser()):
        ids = _read_file(Path(given).expanduser())
    else:
        ids = (one.strip() for one in given.split(","))
    found = tuple(dict.fromkeys(one for one in ids if one))
    if not found:
        raise PlanError(f"{given!r} names no sample")
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a long list of ids is no path
        return False


def _read_file(path: Path) -> list[str]:
    """Return the ids in a file. Raises PlanError with the line."""
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    if text.startswith(("{", "[")):
        try:
            return list(_list_ids(msgspec.json.decode(text), str(path)))
        except msgspec.DecodeError:
            pass  # a JSON object per line
    ids: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped, where = line.strip(), f"{path}:{number}"
        if not stripped.startswith("{"):
            ids.append(stripped)
            continue
        try:
            ids += _list_ids(msgspec.json.decode(stripped), where)
        except msgspec.DecodeError as error:
            raise PlanError(f"{where}: not a JSON object: {error}") from error
    return ids


def _list_ids(found: Any, where: str) -> Iterator[str]:
    """Yield the ids of an object with an `id`, of a list, or of what `show --json` prints."""
    if isinstance(found, Mapping) and isinstance(found.get("result"), Mapping):
        found = found["result"]
    if isinstance(found, Mapping) and "id" not in found and "samples" in found:
        found = [*found.get("rows", ()), *found["samples"]]
    for one in found if isinstance(found, list) else [found]:
        name = one.get("id") if isinstance(one, Mapping) else one
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise PlanError(f"{where}: an entry has no id")
        yield str(name)


class SampleChoice:
    """The samples that a plan names, found while its tasks are loaded one after the other."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[str, list[str]] = {}
        self._found: dict[str, dict[str, list[str]]] = {}

    def pick(self, task: Task, dataset: Dataset) -> Dataset | None:
        """Return the data set with the samples that the plan names, or None for all of them.

        `find_problems` reports a task that has none of them.
        """
        of_task = self._plan.samples_of
        wanted = of_task.get(task.name) or of_task.get(task.control_of or "") or self._plan.samples
        if not wanted:
            return None
        ids = self._known[task.name] = [sample.id for sample in dataset.samples]
        found = self._found[task.name] = _find_ids(wanted, dataset)
        names = {name for each in found.values() for name in each}
        chosen = [sample for sample in dataset.samples if sample.id in names]
        return replace(dataset, samples=chosen) if 0 < len(chosen) < len(ids) else None

    def find_problems(self) -> list[PlanError]:
        """Return one error for ids that no task has, and for tasks that have none of the ids."""
        problems: list[str] = []
        everywhere = {name for ids in self._known.values() for name in ids}
        somewhere = {name for found in self._found.values() for name, ids in found.items() if ids}
        for task, ids in self._known.items():
            found = self._found[task]
            alone = task in self._plan.samples_of or len(self._known) == 1
            unknown = sorted(
                name for name, its in found.items() if not its and (alone or name not in somewhere)
            )
            owner = f"{task} has no" if alone else "no task has a"
            close = ids if alone else sorted(everywhere)
            problems += [
                f"samples: {owner} sample {name!r}.{_suggest(name, close)}"
                for name in unknown[:SHOWN]
            ]
            if len(unknown) > SHOWN:
                problems.append(f"samples: {len(unknown) - SHOWN} more are unknown")
            if not unknown and not any(found.values()):
                problems.append(f"samples: {task} has none of these samples: leave the task out")
        told = list(dict.fromkeys(problems))
        return [PlanError(told, hint=_HINT)] if told else []


def _suggest(name: str, ids: Sequence[str]) -> str:
    """Return what may be meant: the same case with another hash of its question, or a close id."""
    case = f"{name.partition(_HASH)[0]}{_HASH}"
    same = [one for one in ids if one.startswith(case)]
    return registry.nearest(same[0] if same else name, ids)


def _find_ids(wanted: Iterable[str], dataset: Dataset) -> dict[str, list[str]]:
    """Return the ids of the samples that each wanted name means.

    It may be an id, that of a repeat, or the name of cases as `serve-eval data cases expand` prints
    it.
    """
    known: dict[str, list[str]] = defaultdict(list)
    for sample in dataset.samples:
        if (case := sample.metadata.get("case")) is not None:
            known[case].append(sample.id)
    known.update((sample.id, [sample.id]) for sample in dataset.samples)
    return {name: known.get(name) or known.get(_REPEAT.sub("", name), []) for name in wanted}


def read_repeats(
    given: Times | Mapping[str, Times] | None, with_cases: PlannedCases
) -> dict[str, Any]:
    """Return the number of repeats as fields of a plan.

    A single number applies to all tasks. Otherwise a task uses the number of the plan, or of its
    case file. The plan has the number that is usual, not the word.
    """
    if isinstance(given, int):
        return {"repeats": given}
    names = {task.name for task in with_cases.tasks}
    if given == USUAL:
        given = dict.fromkeys(names - with_cases.iterations.keys(), USUAL)
    told = {**with_cases.iterations, **(given or {})}
    numbers = {
        name: (_find_usual(name) or 1) if times == USUAL else times
        for name, times in told.items()
        if name in names
    }
    return {"repeats_of": {name: times for name, times in numbers.items() if times > 1}}


def _find_usual(name: str) -> int | None:
    return None if is_mutable(name) else find_usual_repeats(name)


def note_repeats(given: Times | Mapping[str, Times] | None, plan: Plan) -> Iterator[str]:
    """Yield what is usual for tasks whose repeats were not chosen."""
    if given == USUAL and not plan.repeats_of:
        yield "no task of this run is usually asked several times: each prompt is asked once"
    for task in plan.tasks if given == USUAL else ():
        if plan.times(task.name) > 1 and not task.options.get("temperature"):
            yield (
                f"{task.name}: at temperature 0 a server may answer alike each time; set the"
                " sampling of the model's card (--temperature, protocol.top_p)"
            )
    for task in plan.tasks if given is None else ():
        if (usual := _find_usual(task.name)) is not None and plan.times(task.name) == 1:
            yield (
                f"{task.name}: models are usually compared by avg@{usual}; --repeats usual asks"
                f" each prompt {usual} times instead of once"
            )


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
