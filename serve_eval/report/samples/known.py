"""Find what only the data set of a task knows of its samples: fields, requests, a reference's runs.

A run folder does not keep these. Without the data set on this machine they are not shown.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import msgspec

from serve_eval.client.wire_format.wire import PROMPT_FIELDS, encode
from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import adopt_code
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.schema import CHAT_ROUTES, HOLDOUT, Dataset, Plan, Reference, Sample, Spec, Task
from serve_eval.verdicts.pairing import read_stored_runs


@freeze
class ReferenceScores:
    """The scores of each prompt in the runs of a reference, by id, and the ends of their range."""

    scores: Mapping[str, tuple[float, ...]]
    lo: float
    hi: float


@freeze
class KnownTask:
    """Metadata, requests and reference scores of a task's samples, from its data set.

    `fields` has their metadata and the task's own groups, by field and id. `body` is the request of
    most samples without its prompt, and `bodies` those of the others by id (None: it is not one
    request). `reference` are the scores of the reference's runs (None: not known).
    """

    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: ReferenceScores | None = None


def prepare_again(plan: Plan, spec: Spec, include_path: Sequence[str]) -> PreparedTask:
    """Return a task of a run with its data, without a download.

    Raises ServeEvalError if its code or its data is not on this machine.
    """
    alone = replace(plan, tasks=(spec,), no_reference=True, allow_hub=False)
    return prepare(adopt_code(alone, include_path))[0]


def know_task(
    plan: Plan,
    spec: Spec,
    reference: Reference | None,
    include_path: Sequence[str],
    wanted: Container[str],
    prepared: PreparedTask | None = None,
) -> KnownTask | None:
    """Return what the data set adds to these samples, or None if it is not on this machine.

    `prepared` is the task as the caller has it (None: it is prepared again).
    """
    try:
        prepared = prepared or prepare_again(plan, spec, include_path)
    except (ServeEvalError, OSError):
        return None
    task, dataset = prepared.task, prepared.dataset
    plain = next((one for one in dataset.samples if one.override is None), None)
    shown = [one for one in dataset.samples if one.id in wanted]
    return KnownTask(
        fields=_read_fields(task, shown),
        body=None if plain is None else _build_body(plan, task, plain),
        bodies={
            one.id: body
            for one in shown
            if one.override is not None and (body := _build_body(plan, task, one)) is not None
        },
        reference=None if reference is None else score_reference(dataset, reference, wanted),
    )


def score_reference(
    dataset: Dataset, reference: Reference, wanted: Container[str] | None = None
) -> ReferenceScores | None:
    """Return the scores of a reference by sample, of those that are `wanted` or of all.

    None: it does not know the samples.
    """
    stored = read_stored_runs(dataset, reference)
    if stored is None:
        return None
    runs, lo, hi = stored
    scores = {
        sample.id: tuple(one[place] for one in runs)
        for place, sample in enumerate(dataset.samples)
        if wanted is None or sample.id in wanted
    }
    return ReferenceScores(scores=scores, lo=lo, hi=hi)


def _build_body(plan: Plan, task: Task, sample: Sample) -> Mapping[str, Any] | None:
    """Return the request of a sample without its prompt; None if it is more than one request."""
    if sample.choices or task.prompt_logprobs:
        return None
    request, name = request_of(task, sample), plan.connection.max_tokens_field
    by = CHAT_ROUTES[plan.connection.route]
    body = msgspec.json.decode(encode(request, plan.model or "", max_tokens_field=name, by=by))
    return {key: value for key, value in body.items() if key not in PROMPT_FIELDS}


def _read_fields(task: Task, samples: Sequence[Sample]) -> dict[str, dict[str, str]]:
    """Return the groups of the task's breakdown and the metadata of its samples.

    Hold-out samples are left out.
    """
    found: dict[str, dict[str, str]] = {}
    for sample in samples:
        if HOLDOUT in sample.metadata:
            continue
        for name, value in (*sample.metadata.items(), *_list_groups(task, sample)):
            found.setdefault(name, {})[sample.id] = value
    return found


def _list_groups(task: Task, sample: Sample) -> list[tuple[str, str]]:
    """Return the group of a sample in each table of the task's breakdown."""
    try:
        tables = task.breakdown([(sample, 0.0)])
    except Exception:  # a task's own function; the report names the errors that it makes
        return []
    return [
        (name, str(next(iter(table))))
        for name, table in tables.items()
        if isinstance(table, Mapping) and len(table) == 1
    ]
