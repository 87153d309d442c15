"""Find the parts of a capsule, with the script that sends its request again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.checks.row import SentRequest, curl, escape
from serve_eval.client.request import put_media
from serve_eval.client.wire_format import logprobs, wire
from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.capabilities.sampling import to_fields
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.plugins.registry import nearest
from serve_eval.schema import CHAT_ROUTES, HOLDOUT, Attempt, LogprobsForm, Need, Plan, Sample
from serve_eval.shell_words import quote_path
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Record
from serve_eval.storage.json_files import differences
from serve_eval.storage.sessions import SessionRecord


@freeze
class Packed:
    """The parts of a capsule: a sample, its records, and the last session that asked it."""

    run: Path
    plan: Plan
    p: PreparedTask
    sample: Sample
    records: Sequence[Record]
    session: SessionRecord

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for record in self.records for attempt in result_of(record).attempts]


def result_of(record: Record) -> Any:
    """Return the response of a record, or its failure."""
    return record.response if record.response is not None else record.failure


def choose_tasks(plan: Plan, task: str | None) -> Plan:
    """Return the plan with only the wanted task, or unchanged if `task` is None.

    Raises PlanError for a task that the plan lacks.
    """
    if task is None:
        return plan
    names = [spec.name for spec in plan.tasks]
    if task not in names:
        raise PlanError(f"--task {task}: the run has no such task.{nearest(task, names)}")
    return replace(plan, tasks=tuple(spec for spec in plan.tasks if spec.name == task))


def check_unchanged(
    prepared: PreparedTask, prints: Mapping[str, Mapping[str, str]], run: Path
) -> PreparedTask:
    """Return the task if it asks what the run asked. Raises DatasetError otherwise."""
    differing = differences(dict(prints.get(prepared.task.name, {})), prepared.fingerprint)
    if differing:
        raise DatasetError(
            f"{prepared.task.name} differs from the task that {run} asked: {'; '.join(differing)}",
            hint=(
                "Restore the data that the run used, and use the version of serve-eval that"
                " environment.json names."
            ),
        )
    return prepared


def pack(
    run: Path,
    plan: Plan,
    prepared: Sequence[PreparedTask],
    name: str,
    sessions: Sequence[SessionRecord],
    *,
    allow_holdout: bool,
) -> Packed:
    """Find a sample by its id.

    Raises PlanError for a sample that does not exist, was not asked, or belongs to a hold-out set.
    """
    found = [(p, sample) for p in prepared if (sample := _sample(plan, p, name)) is not None]
    if not found:
        known = [sample.id for p in prepared for sample in p.dataset.samples]
        raise PlanError(f"{name}: the run has no such sample.{nearest(name, known)}")
    if len(found) > 1:
        tasks = ", ".join(p.task.name for p, _ in found)
        raise PlanError(
            f"{name}: {tasks} all have a sample with that id",
            hint="Choose one with --task.",
        )
    p, sample = found[0]
    if HOLDOUT in sample.metadata and not allow_holdout:
        raise PlanError(
            f"{name} belongs to a hold-out set, whose texts must not be shown",
            hint="If you do not share the capsule: --allow-holdout.",
        )
    file = samples_file(run, p.task.name)
    records = (
        [record for record in journal.read(file) if record.id == name] if file.exists() else []
    )
    if not records:
        raise PlanError(
            f"{name}: not asked yet",
            hint=f"serve-eval run --resume {quote_path(run)}",
        )
    attempts = [attempt for record in records for attempt in result_of(record).attempts]
    asked_s = max((attempt.start_s for attempt in attempts), default=0.0)
    return Packed(
        run=run, plan=plan, p=p, sample=sample, records=records, session=_session(sessions, asked_s)
    )


def _sample(plan: Plan, prepared: PreparedTask, name: str) -> Sample | None:
    times = plan.times(prepared.task.name)
    samples = prepared.dataset.samples if times == 1 else Repeated(prepared.dataset.samples, times)
    return next((sample for sample in samples if sample.id == name), None)


def _session(sessions: Sequence[SessionRecord], at_s: float) -> SessionRecord:
    """Return the session that was active at that time; its start is recorded in whole seconds."""
    begun = [one for one in sessions if datetime.fromisoformat(one.started_at).timestamp() <= at_s]
    return (begun or list(sessions) or [SessionRecord()])[-1]


BASE_URL = "BASE_URL"


def bodies_of(one: Packed) -> dict[str, bytes]:
    """Encode the request by file name: one body, or one for each choice of the sample."""
    request = request_of(one.p.task, one.sample)
    prompts = (
        [context + choice for context, choice in one.sample.continued]
        if one.sample.choices
        else [request.prompt]
    )
    model = one.session.endpoint.model or one.plan.model
    if not model:
        raise RunFolderError(
            f"{one.run}: neither its plan nor its sessions name the model that was asked"
        )
    over = logprobs.FIELDS[_form(one)] if request.prompt_logprobs else None
    defaults = one.session.sampling_defaults
    neutral = None if defaults is None else to_fields(defaults)
    encoded = [
        wire.encode(
            put_media(msgspec.structs.replace(request, prompt=prompt), "inline"),
            model,
            stream=bool(one.attempts and one.attempts[-1].streamed),
            max_tokens_field=one.plan.connection.max_tokens_field,
            over=over,
            neutral=neutral,
            by=CHAT_ROUTES[one.plan.connection.route],
        )
        for prompt in prompts
    ]
    if len(encoded) == 1:
        return {"body.json": encoded[0]}
    return {f"body-{number}.json": body for number, body in enumerate(encoded, 1)}


def _form(one: Packed) -> LogprobsForm:
    """Return the form of the log-probabilities that the probe of the session found."""
    told = [found.seen for found in one.session.abilities if found.need == Need.PROMPT_LOGPROBS]
    return next(
        (form for form in logprobs.FIELDS if told and told[0].startswith(f"{form}: ")), "echo"
    )


def script_of(one: Packed, bodies: Mapping[str, bytes]) -> str:
    """Return the shell script that sends the bodies again."""
    connection = one.plan.connection
    route = wire.route(one.sample.prompt, CHAT_ROUTES[connection.route])
    lines = [
        "#!/bin/sh",
        "# Sends the request again. Keys come from variables.",
        "set -e",
        'CDPATH= cd -- "$(dirname -- "$0")"',
    ]
    base_url = shlex.quote(escape(base_url_of(one)))
    lines.append(f'[ -n "${BASE_URL}" ] || {BASE_URL}={base_url}')
    names = []
    if connection.api_key_env:
        names = [connection.api_key_env]
        lines.append(f': "${{{connection.api_key_env}:=none}}"')
    for name, body in bodies.items():
        sent = SentRequest(url=route, body=msgspec.json.decode(body))
        lines += [curl(sent, connection, names, body_file=name, base_variable=BASE_URL), "echo"]
    return "\n".join(lines) + "\n"


def base_url_of(one: Packed) -> str:
    """Return the base URL of the session, or else that of the plan."""
    told = one.session.endpoint.base_url or one.plan.launcher.options.get("base_url")
    return str(told or "http://localhost:8000/v1")
