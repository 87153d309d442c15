"""Determine everything known before the first request: tasks, data, references, rules, thresholds.

What cannot be judged fails here, before a GPU is taken.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from serve_eval.errors import (
    DatasetError,
    PlanError,
    ReferenceFileError,
    SandboxError,
    ServeEvalError,
)
from serve_eval.evaluation.preflight import check_sizes, warn_of_shared_texts
from serve_eval.plan.applicable_reference import (
    ApplicableReference,
    LackingReference,
    explain_refusal,
    find_applicable,
    find_lacking,
    is_replaced,
    may_lack,
    reference_directories,
)
from serve_eval.plan.check import refuse_meaningless
from serve_eval.plan.chosen_samples import SampleChoice, ShardPart, list_places, shard_fingerprint
from serve_eval.plan.prepared_task import CLASSIC, DATASET, PreparedTask, find_roots
from serve_eval.plugins import registry
from serve_eval.protocol.sampling_fields import (
    CASES,
    ROUTE,
    SCORER_OPTIONS,
    SERVER_ADDS,
    fingerprint,
)
from serve_eval.protocol.shared import build_task, note_route, usual_task
from serve_eval.schema import Dataset, Hypothesis, Plan, Reference, Shard, Spec, Task
from serve_eval.stats.classic import num_samples_for
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.verdicts import pairing, reference_noise
from serve_eval.verdicts.exit_code import worst
from serve_eval.verdicts.pairing import count_known
from serve_eval.verdicts.references import find_acceptance_length
from serve_eval.verdicts.validity import CHOSEN_SAMPLES

OTHER_DATA = "the data is not the published set"
"""Beginning of the note about such data."""
CHOSEN = "the samples were named by --samples, and the reference has no scores of single samples"
"""Reason why a reference of all samples judges no chosen ones, which may be the hard ones."""
MOST_ASKED = 10_000_000
"""Maximum number of requests of a task with repeats: each takes some hundred bytes of memory."""
_OTHER_DATA_HINT = (
    "Get the whole set, use your own references, or compare anyway with --allow-mismatch"
    f" {DATASET}."
)


def prepare(plan: Plan) -> list[PreparedTask]:
    """Return every task of the plan, ready to be asked.

    Raises PlanError, DatasetError, ReferenceFileError, SandboxError, and NotComparableError if a
    reference is missing or was taken under another protocol, unless the plan allows it. All
    problems of all tasks are in one error, each with what to do.
    """
    built = _build(plan)
    tasks = [task for _, task in built]
    problems = [*refuse_meaningless(plan), *_find_unsafe(plan, tasks), *_find_idle(plan, tasks)]
    lost = []
    applicable: list[ApplicableReference] = []
    for spec, task in built:
        try:
            applicable.append(find_applicable(plan, spec, task))
        except ReferenceFileError as error:
            lost.append(error)
            applicable.append(ApplicableReference())
    problems += _find_unknown_fields(plan, tasks, applicable)
    lacking = [
        LackingReference(
            spec.name,
            task.name,
            one.why,
            one.refused,
            replaced=one.found is not None and is_replaced(plan, one.found),
        )
        for (spec, task), one in zip(built, applicable, strict=True)
        if one.why is not None and task.control_of is None and not task.recorded
    ]
    problems += [*find_lacking(plan, lacking), *lost]
    prepared, choice = [], SampleChoice(plan)
    for (spec, task), reference in zip(built, applicable, strict=True):
        try:
            whole = _prepare(plan, spec, task, reference, choice)
            _check_number(whole.dataset, plan.times(task.name), task.name)
            if plan.limits.pace == "recorded":
                _check_times(task, whole.dataset)
            prepared.append(whole if plan.shard is None else _take_part(plan.shard, whole))
        except (DatasetError, PlanError) as error:
            problems.append(error)
    if problems := [*problems, *choice.find_problems()]:
        raise join_errors(problems)
    return prepared


def _check_number(dataset: Dataset, times: int, name: str) -> None:
    """Raise PlanError if a task asks more prompts, with their repeats, than memory has room for."""
    if times > 1 and (number := times * len(dataset.samples)) > MOST_ASKED:
        raise PlanError(
            f"{name}: {len(dataset.samples):,} prompts, {times:,} times each, are {number:,}"
            f" requests, and the limit is {MOST_ASKED:,}",
            hint="Ask fewer repeats, or fewer prompts with --limit.",
        )


def _find_unsafe(plan: Plan, tasks: Sequence[Task]) -> list[ServeEvalError]:
    """Return an error if tasks run code that the plan does not allow to run."""
    unsafe = [task.name for task in tasks if task.unsafe]
    if not unsafe or plan.allow_code_execution:
        return []
    return [
        SandboxError(
            f"{', '.join(unsafe)}: scoring runs code written by the model on this machine, without"
            " any isolation",
            hint="On a machine that you can afford to lose, pass --allow-code-execution.",
        )
    ]


def _find_idle(plan: Plan, tasks: Sequence[Task]) -> list[ServeEvalError]:
    """Return an error if a plan names a route that none of its tasks uses."""
    if plan.connection.route == "chat" or any(task.chat for task in tasks):
        return []
    names, recorded = ", ".join(task.name for task in tasks), all(task.recorded for task in tasks)
    hint = "Leave out --route (compare.route_b)"
    if not recorded:
        hint += ", or make the prompts chats with --set protocol.apply_chat_template=true"
    why = "recorded requests keep their own routes" if recorded else "it takes chat prompts only"
    told = f"connection.route: {names} would not be asked by /v1/responses: {why}"
    return [PlanError(told, hint=f"{hint}.")]


def join_errors(problems: Sequence[ServeEvalError]) -> ServeEvalError:
    """Return one error for several. Those with the same fix come before it, in one paragraph.

    Its kind is that of the first error whose exit code takes precedence.
    """
    if len(problems) == 1:
        return problems[0]
    by_hint: dict[str, dict[str, None]] = {}
    for one in problems:
        by_hint.setdefault(one.hint, {})[str(one)] = None
    told = ["\n".join((*texts, *([hint] if hint else []))) for hint, texts in by_hint.items()]
    code = worst([one.exit_code for one in problems])
    kind = next(type(one) for one in problems if one.exit_code == code)
    return kind("\n\n".join(told))


def _build(plan: Plan) -> list[tuple[Spec, Task]]:
    """Return every task of a plan with its spec. Raises PlanError."""
    built, problems, hints = [], [], []
    for i, spec in enumerate(plan.tasks):
        try:
            task = build_task(spec, f"tasks[{i}].{spec.name}")
            built.append((spec, note_route(task, plan.connection.route)))
        except PlanError as error:
            problems += error.problems
            hints += [error.hint] if error.hint else []
    # The files of a run are named after its tasks, so two tasks with one name would share them.
    times = Counter(task.name for _, task in built)
    problems += [f"tasks: {name} is listed twice" for name, n in times.items() if n > 1]
    if problems:
        raise PlanError(problems, hint="\n".join(dict.fromkeys(hints)))
    return built


def _find_unknown_fields(
    plan: Plan, tasks: Sequence[Task], applicable: Sequence[ApplicableReference]
) -> list[PlanError]:
    """Return an error for fields of `allow_mismatch` that are in no task and no reference."""
    references = [one.found for one in applicable if one.found is not None]
    recorded = {name for found in references for name in found.protocol or ()}
    own = {name for task in tasks for name in (*task.protocol, *task.reference_fields)}
    known = sorted(
        {DATASET, ROUTE, SERVER_ADDS, *recorded, *own, *((SCORER_OPTIONS,) if CASES in own else ())}
    )
    problems = [
        f"allow_mismatch: unknown protocol field {name!r}.{registry.nearest(name, known)}"
        for name in plan.allow_mismatch
        if name not in known
    ]
    return [PlanError(problems)] if problems else []


def _prepare(
    plan: Plan, spec: Spec, task: Task, reference: ApplicableReference, choice: SampleChoice
) -> PreparedTask:
    """Return a task with its data, and the reference if it applies to them."""
    found, why, protocol = reference.found, reference.why, reference.protocol
    if reference.refused:
        found, protocol = None, None
    task = _follow_direction(task, found)
    hypothesis = _hypothesis(task.hypothesis, found)
    assert hypothesis.num_samples is not None
    test = task.acceptance_length
    acceptance = None if test is None else find_acceptance_length(test, reference_directories(plan))
    roots = find_roots(plan)
    wanted, hypothesis, sized = reference_noise.keep_named(
        spec.options.get("num_samples"), hypothesis, found
    )
    full = task.load(roots, wanted)
    check_ids(task, full)
    registered = task.hypothesis.num_samples or (None if found is None else found.num_samples)
    if registered is None:
        hypothesis = replace(hypothesis, num_samples=len(full.samples))
    if plan.no_reference and (found is not None or reference.refused):
        found, why, protocol = None, "--no-reference was given", None
    if found is not None and (deviation := explain_refusal(plan, task, full, found)):
        if not may_lack(plan):
            raise DatasetError(deviation, hint=_OTHER_DATA_HINT)
        found, why, protocol = None, deviation, None
    named = choice.pick(task, full)
    dataset, hypothesis, notes = _subset(plan, task, full, named, hypothesis)
    check_sizes(task.name, dataset.samples, plan)
    usual = usual_task(spec).hypothesis.num_samples
    if (
        usual not in (None, hypothesis.num_samples)
        and not notes
        and (found is None or found.num_samples is None)
    ):
        n = hypothesis.num_samples
        judged = "" if found is None else ": judged with that n"
        notes = (f"num_samples is {n}, not the task's registered {usual}{judged}",)
    if full.deviation is not None:
        notes = (*notes, f"{OTHER_DATA}: {full.deviation}")
    shared = None if task.recorded else warn_of_shared_texts(task.name, dataset.samples)
    notes = (*notes, *full.notes, *([] if shared is None else [shared]))
    if found is not None:
        found, moved = pairing.on_these_prompts(task, dataset, found)
        notes = notes if moved is None else (*notes, moved)
        if moved is None and named is not None:
            found, why, protocol = None, CHOSEN, None
    hypothesis, fewer = reference_noise.hold_n(hypothesis, found, len(dataset.samples))
    drawn = () if found is None or reference.draw is None else (reference.draw,)
    unknown = () if found is None or reference.unrecorded is None else (reference.unrecorded,)
    notes = (*sized, *notes, *fewer, *drawn, *unknown)
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
        rule=choose_rule(plan, task, dataset, found),
        acceptance=acceptance,
        wanted=wanted,
    )


def _check_times(task: Task, dataset: Dataset) -> None:
    """Raise PlanError if a sample has no recorded time."""
    lacking = [one.id for one in dataset.samples if "arrival_s" not in one.metadata]
    if lacking:
        raise PlanError(
            f"--pace recorded: {task.name} has no recorded times",
            hint="Each request needs one, such as a timestamp; leave out --pace.",
        )


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
        first: dict[str, int] = {}
        for place, sample in enumerate(dataset.samples, 1):
            if (before := first.setdefault(sample.id, place)) != place:
                raise DatasetError(
                    f"{task.name}: samples {before} and {place} have the same id {sample.id!r}"
                )


def _subset(
    plan: Plan, task: Task, full: Dataset, named: Dataset | None, hypothesis: Hypothesis
) -> tuple[Dataset, Hypothesis, tuple[str, ...]]:
    """Return what the plan asks of a data set, with its n and notes about the choice."""
    if named is None:
        return _draw(plan, task, full, hypothesis)
    count = len(named.samples)
    hypothesis = replace(hypothesis, num_samples=count)
    dataset, hypothesis, notes = _draw(plan, task, named, hypothesis)
    told = f"{count} of {len(full.samples)} samples, named by --samples"
    doubt = (
        f"{CHOSEN_SAMPLES}: if samples were named by how they were answered, the verdict says"
        " nothing of the model and p does not hold: asked again, such scores change by chance"
    )
    return dataset, hypothesis, (told, doubt, *notes)


def _draw(
    plan: Plan, task: Task, dataset: Dataset, hypothesis: Hypothesis
) -> tuple[Dataset, Hypothesis, tuple[str, ...]]:
    """Return a seeded random subset in the order of the protocol, with its n."""
    planned = len(dataset.samples)
    limit = 1 if plan.integration_test else plan.limit
    if limit is None or limit >= planned:
        return dataset, *_hold_n(hypothesis, planned)
    rng = random.Random(f"{plan.seed}:{task.control_of or task.name}")
    chosen = sorted(rng.sample(range(planned), limit))
    judged = "; nothing is judged" if plan.integration_test else ""
    note = (
        f"only {limit} of {planned} samples are asked, drawn at random (seed {plan.seed}){judged}"
    )
    samples = [dataset.samples[i] for i in chosen]
    return replace(dataset, samples=samples), replace(hypothesis, num_samples=limit), (note,)


def _hold_n(hypothesis: Hypothesis, planned: int) -> tuple[Hypothesis, tuple[str, ...]]:
    """Return the parameters with an n that the data can give, and a note if it was larger.

    A larger n would promise a precision that the value does not have.
    """
    n = hypothesis.num_samples or planned
    if n <= planned:
        return hypothesis, ()
    note = (
        f"num_samples is {n:,}, but the data has only {planned:,} samples; the verdict uses"
        f" n = {planned}"
    )
    return replace(hypothesis, num_samples=planned), (note,)


def _follow_direction(task: Task, found: Reference | None) -> Task:
    """Return the task with the direction of its reference, which every rule and text follows."""
    if found is None or found.higher_is_better in (None, task.metric.higher_is_better):
        return task
    higher = bool(found.higher_is_better)
    return replace(task, metric=replace(task.metric, higher_is_better=higher))


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


PAIRED = Spec(name="paired")
MOST = 10_000
"""Number of prompts after which the least number of groups is no longer looked for."""


def choose_rule(plan: Plan, task: Task, dataset: Dataset, reference: Reference | None) -> Spec:
    """Return the rule that judges a task, with its options.

    If the user names none, scores per sample are judged prompt by prompt, as `compare` judges them.
    A reference that has none, as a published one, is judged by the classic rule, and so is one with
    an explicit threshold, with other prompts, or of a value that cannot be paired. So are fewer
    prompts, or groups of them, than a rule of pairs judges.
    """
    if plan.rule_named or plan.verdict != CLASSIC:
        return plan.verdict
    if reference is None or reference.runs is None or reference.threshold is not None:
        return plan.verdict
    units = {sample.group or f"id {sample.id}" for sample in islice(dataset.samples, MOST)}
    if len(units) < MIN_UNITS:
        return plan.verdict
    if not task.aggregation.paired or count_known(dataset, reference) != len(dataset.samples):
        return plan.verdict
    return PAIRED
