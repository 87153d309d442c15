"""Determine everything known before the first request: tasks, data, references, thresholds.

What cannot be judged fails here, before a GPU is taken.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_eval.errors import (
    DatasetError,
    NotComparableError,
    PlanError,
    ReferenceFileError,
    SandboxError,
)
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.plan.request_size import check_sizes
from serve_eval.evaluation.plan.shard import ShardPart, list_places, shard_fingerprint
from serve_eval.plugins import registry
from serve_eval.protocol.fingerprint import fingerprint, protocol_differences
from serve_eval.protocol.shared import ONLY_IF_SET, OWN_ONLY_IF_SET, build_task, usual_task
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Plan, Reference, Shard, Spec, Task
from serve_eval.stats.classic import num_samples_for
from serve_eval.verdicts import pairing
from serve_eval.verdicts.references import (
    explain_missing,
    find,
    find_acceptance_length,
    find_shipped_dir,
)

DATASET = "dataset"
"""Name in `allow_mismatch` that accepts data other than the published set."""
OTHER_DATA = "the data is not the published set"
"""Beginning of the note about such data."""
_OTHER_DATA_HINT = (
    "Get the whole set, use your own references, or compare anyway with --allow-mismatch"
    f" {DATASET}."
)
_NO_ROW_HINT = (
    "Give the --model and the specification of a registered row, or pass your own rows with"
    " --references-dir."
)


def prepare(plan: Plan) -> list[PreparedTask]:
    """Return every task of the plan, ready to be asked.

    Raises PlanError, DatasetError, ReferenceFileError, SandboxError, and NotComparableError if a
    reference is missing or was taken under another protocol, unless the plan allows it.
    """
    built = _build(plan)
    unsafe = [task.name for _, task in built if task.unsafe]
    if unsafe and not plan.allow_code_execution:
        raise SandboxError(
            f"{', '.join(unsafe)}: scoring runs code written by the model on this machine, without"
            " any isolation",
            hint="On a machine that you can afford to lose, pass --allow-code-execution.",
        )
    references = [_reference(plan, task) for _, task in built]
    _check_mismatches(plan, [task for _, task in built], [found for found, _ in references])
    prepared, lacking = [], []
    for (spec, task), (found, why) in zip(built, references, strict=True):
        try:
            whole = _prepare(plan, spec, task, found, why)
            prepared.append(whole if plan.shard is None else _take_part(plan.shard, whole))
        except DatasetError as error:
            lacking.append(error)
    if len(lacking) > 1:
        said = [f"{error}\n{error.hint}" for error in lacking]
        raise DatasetError("\n".join(dict.fromkeys(said)))
    if lacking:
        raise lacking[0]
    return prepared


def _build(plan: Plan) -> list[tuple[Spec, Task]]:
    """Return every task of a plan with its spec. Raises PlanError."""
    built, problems, hints = [], [], []
    for i, spec in enumerate(plan.tasks):
        try:
            built.append((spec, build_task(spec, f"tasks[{i}].{spec.name}")))
        except PlanError as error:
            problems += error.problems
            hints += [error.hint] if error.hint else []
    # The files of a run are named after its tasks, so two tasks with one name would share them.
    times = Counter(task.name for _, task in built)
    problems += [f"tasks: {name} is listed twice" for name, n in times.items() if n > 1]
    if problems:
        raise PlanError(problems, hint="\n".join(dict.fromkeys(hints)))
    return built


def _check_mismatches(
    plan: Plan, tasks: Sequence[Task], references: Sequence[Reference | None]
) -> None:
    """Raise PlanError for a field of `allow_mismatch` that is in no task and no reference."""
    recorded = {name for found in references if found is not None for name in found.protocol or ()}
    known = sorted({DATASET, *recorded, *(name for task in tasks for name in task.protocol)})
    problems = [
        f"allow_mismatch: unknown protocol field {name!r}.{registry.nearest(name, known)}"
        for name in plan.allow_mismatch
        if name not in known
    ]
    if problems:
        raise PlanError(problems)


def _prepare(
    plan: Plan, spec: Spec, task: Task, found: Reference | None, why: str | None
) -> PreparedTask:
    protocol, refused = (
        (None, None) if found is None else _compare_protocol(plan, spec, task, found)
    )
    if refused:
        found, why = None, refused
    may_lack = plan.no_reference or plan.allow_missing_reference or plan.integration_test
    may_lack = may_lack or task.control_of is not None
    if why is not None and not may_lack:
        raise NotComparableError(
            f"{task.name}: {why}",
            hint=("To compare anyway: --allow-mismatch FIELD." if refused else _NO_ROW_HINT)
            + " To print the value without a verdict: --allow-missing-reference, or for all tasks"
            " --no-reference.",
        )
    hypothesis = _hypothesis(task.hypothesis, found)
    assert hypothesis.num_samples is not None
    test = task.acceptance_length
    acceptance = None if test is None else find_acceptance_length(test, reference_directories(plan))
    roots = DataRoots(roots=tuple(map(Path, plan.dataset_roots)), allow_hub=plan.allow_hub)
    wanted = hypothesis.num_samples
    full = task.load(roots, wanted)
    check_ids(task, full)
    registered = task.hypothesis.num_samples or (None if found is None else found.num_samples)
    if registered is None:
        hypothesis = replace(hypothesis, num_samples=len(full.samples))
    if found is not None and (deviation := _explain_refusal(plan, task, full, found)):
        if not may_lack:
            raise DatasetError(deviation, hint=_OTHER_DATA_HINT)
        found, why, protocol = None, deviation, None
    if plan.no_reference and found is not None:
        found, why, protocol = None, "--no-reference was given", None
    dataset, hypothesis, notes = _subset(plan, task, full, hypothesis)
    check_sizes(task.name, dataset.samples, plan)
    usual = usual_task(spec).hypothesis.num_samples
    if (
        usual not in (None, hypothesis.num_samples)
        and not notes
        and (found is None or found.num_samples is None)
    ):
        n = hypothesis.num_samples
        notes = (f"num_samples is {n}, not the task's registered {usual}: judged with that n",)
    if full.deviation is not None:
        notes = (*notes, f"{OTHER_DATA}: {full.deviation}")
    notes = (*notes, *full.notes)
    if found is not None:
        found, moved = pairing.on_these_prompts(task, dataset, found)
        notes = notes if moved is None else (*notes, moved)
    return PreparedTask(
        spec=spec,
        task=task,
        dataset=dataset,
        fingerprint=fingerprint(task, dataset),
        hypothesis=hypothesis,
        reference=found,
        why_no_reference=why,
        protocol=protocol,
        notes=notes,
        acceptance=acceptance,
        wanted=wanted,
    )


def reference_directories(plan: Plan) -> list[Path]:
    """Return the folders of references: the user's first, then the shipped ones."""
    own = [Path(plan.references_dir)] if plan.references_dir else []
    return [*own, find_shipped_dir()]


def _reference(plan: Plan, task: Task) -> tuple[Reference | None, str | None]:
    """Return the reference, or the reason why it is missing."""
    if task.control_of is not None:
        return None, f"a control: it is judged if {task.control_of} is in the same run"
    model = plan.reference_model or plan.model
    if model is None:
        return None, "the model is not known yet"
    directories = reference_directories(plan)
    found = find(task.reference_file, model, plan.accuracy_spec, directories)
    if found is not None:
        if found.metric not in (task.metric.name, "accuracy"):
            place = f"{found.file}:{found.line}: {model}"
            raise ReferenceFileError(
                f"{place}: the value is a {found.metric}; {task.name} gives {task.metric.name}"
            )
        return found, None
    return None, explain_missing(task.reference_file, model, plan.accuracy_spec, directories)


def _compare_protocol(
    plan: Plan, spec: Spec, task: Task, found: Reference
) -> tuple[str, str | None]:
    """Return the report's text about the reference's protocol, and the reason for refusing it.

    The reason is None if the reference may be used.
    """
    if found.protocol is not None:
        other: Any = found.protocol
        known = "recorded with the reference"
    else:
        other, known = _assume_protocol(spec, task, found)
    unset = {name: None for name in (*ONLY_IF_SET, *OWN_ONLY_IF_SET) if name in task.protocol}
    differing = protocol_differences(task.protocol, {**unset, **other})
    refused = [name for name in differing if name not in plan.allow_mismatch]
    if refused:
        details = "; ".join(
            f"{name} is {task.protocol.get(name)!r} here and {other.get(name)!r} with the reference"
            for name in refused
        )
        return known, f"the protocol differs from the reference's, which is {known}: {details}"
    return known + (f", mismatch allowed: {', '.join(differing)}" if differing else ""), None


def _assume_protocol(spec: Spec, task: Task, found: Reference) -> tuple[Any, str]:
    """Return the assumed protocol of a reference that records none, and the report's text about it.

    It is the task's own protocol. For a shipped row with the suite followed exactly, it is the
    suite's, which renders a chat itself. The first imports of BioChatter's results recorded none;
    all are scored as BioChatter scores.
    """
    from serve_eval.cases import biochatter  # Rarely needed: most references record a protocol.

    usual = usual_task(spec)
    if (found.source or "").startswith(biochatter.RESULTS):
        return {**usual.protocol, biochatter.AS_BIOCHATTER: True}, "assumed (as BioChatter scores)"
    if not _is_shipped(found):
        return usual.protocol, "assumed (task default)"
    if not task.protocol.get("suite_exact"):
        exact = usual_task(spec, suite_exact=True).protocol
        others = sorted({*protocol_differences(usual.protocol, exact)} - {"suite_exact"})
        hint = f"; suite_exact would change {', '.join(others)}" if others else ""
        return usual.protocol, f"assumed (task default{hint})"
    names = ("suite_exact", "tokenizer", "template_date") if usual.chat else ("suite_exact",)
    options = {name: spec.options[name] for name in names if name in spec.options}
    return usual_task(spec, **options).protocol, "assumed (as in the suite)"


def _is_shipped(found: Reference) -> bool:
    return Path(found.file).parent == find_shipped_dir()


def _hypothesis(base: Hypothesis, found: Reference | None) -> Hypothesis:
    """Return the task's parameters with the reference's overrides.

    If n is not registered, it is derived from theta.
    """
    if found is not None:
        names = ("num_samples", "sigma", "alpha", "beta")
        overrides: dict[str, Any] = {
            n: getattr(found, n) for n in names if getattr(found, n) is not None
        }
        base = replace(base, **overrides)
    if base.num_samples is None:
        base = replace(
            base, num_samples=num_samples_for(base.theta, base.sigma, base.alpha, base.beta)
        )
    return base


def check_ids(task: Task, dataset: Dataset) -> None:
    """Raise DatasetError for a data set that has no samples or a duplicate id."""
    import numpy

    if not dataset.samples:
        raise DatasetError(f"{task.name}: the data set has no samples")
    # Hashes in flat memory first: a set of a million ids would dominate the memory of the run.
    hashes = array("q", (hash(sample.id) for sample in dataset.samples))
    ordered = numpy.sort(numpy.frombuffer(hashes, dtype=numpy.int64))
    if (ordered[1:] == ordered[:-1]).any() and len({s.id for s in dataset.samples}) < len(
        dataset.samples
    ):
        raise DatasetError(f"{task.name}: two samples have the same id")


def _explain_refusal(plan: Plan, task: Task, dataset: Dataset, found: Reference) -> str | None:
    """Return why a shipped reference must not judge this data, or None if it may."""
    if not _is_shipped(found) or dataset.deviation is None or DATASET in plan.allow_mismatch:
        return None
    files = ", ".join(file.path for file in dataset.files[:4])
    return (
        f"{task.name}: the data is incomplete or not the published set: {dataset.deviation}. It was"
        f" read from {files}{', ...' if len(dataset.files) > 4 else ''}"
    )


def _subset(
    plan: Plan, task: Task, dataset: Dataset, hypothesis: Hypothesis
) -> tuple[Dataset, Hypothesis, tuple[str, ...]]:
    """Return a seeded random subset in the order of the protocol, with its n."""
    planned = len(dataset.samples)
    limit = 1 if plan.integration_test else plan.limit
    if limit is None or limit >= planned:
        return dataset, hypothesis, ()
    rng = random.Random(f"{plan.seed}:{task.control_of or task.name}")
    chosen = sorted(rng.sample(range(planned), limit))
    judged = "not judged" if plan.integration_test else f"judged with n = {limit}"
    note = f"a random subset of {limit} of {planned} samples (seed {plan.seed}), {judged}"
    samples = [dataset.samples[i] for i in chosen]
    return replace(dataset, samples=samples), replace(hypothesis, num_samples=limit), (note,)


def _take_part(shard: Shard, whole: PreparedTask) -> PreparedTask:
    """Return a task with the samples of a shard. Raises PlanError if some shards have none."""
    task, samples = whole.task, whole.dataset.samples
    if len(samples) < shard.count:
        raise PlanError(
            f"shard: {task.name} has {len(samples)} samples, fewer than the {shard.count} shards",
            hint=f"Use at most {len(samples)} shards.",
        )
    part = ShardPart(list_places(samples, shard), len(samples))
    dataset = replace(whole.dataset, samples=[samples[i] for i in part.places])
    prints = shard_fingerprint(shard, whole.fingerprint, fingerprint(task, dataset))
    note = f"shard {shard}: {len(part.places)} of {part.total} samples"
    return replace(
        whole, dataset=dataset, fingerprint=prints, part=part, notes=(*whole.notes, note)
    )
