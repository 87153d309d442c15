"""A folder that replays one request of a run: what was sent, what came back, who answered, and what its log said then.

Made to be handed on: keys stand in it as variables, and what the environment holds as a secret is taken out of all that
was written by others. What was sent is written byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.checks.curl import curl, escaped
from serve_eval.checks.row import Sent
from serve_eval.client import logprobs, wire
from serve_eval.client.secret_mask import SecretMask, variables_in
from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.engine.repeats import Repeated
from serve_eval.evaluation.engine.request import request_of
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.rescore import scores_on_file
from serve_eval.evaluation.storage import journal, run_folder
from serve_eval.evaluation.storage.journal import Record
from serve_eval.evaluation.storage.run_folder import pretty_json, write_private
from serve_eval.evaluation.storage.server_logs import between, log_files, read
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins.registry import nearest
from serve_eval.plugins.scope import scoped
from serve_eval.schema import HOLDOUT, Attempt, LogprobsForm, Need, Plan, Sample, file_stem

AROUND_S = 10.0
"""How long before and after the request the logs are told."""
LOG_LINES = 2000
"""Lines of a log that are told at most."""
NAME_LENGTH = 80
"""Characters of an id that the name of a folder has."""
BASE_URL = "BASE_URL"
_README = """# One request of serve-eval, to be sent again

    sh curl.sh                                    # to {base_url}
    BASE_URL=http://host:8000/v1 sh curl.sh       # to another server

| file | what |
|---|---|
| {bodies} | what was sent, byte for byte |
| curl.sh | sends it; keys come from variables: {variables} |
| expected.json | what the answer should have been |
| actual.json | what came back: the answer, its score, every attempt with its times |
| versions.json | the endpoint as it told of itself, and the software that asked |
| logs/ | {logs} |

Task {task}, sample {sample}. {said}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """What a capsule is made of: a sample of a task, its records, and the session that asked it last."""

    run: Path
    plan: Plan
    p: PreparedTask
    sample: Sample
    records: Sequence[Record]
    session: Mapping[str, Any]

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for record in self.records for attempt in _result(record).attempts]


@scoped
def capsules(
    run: Path,
    samples: Sequence[str],
    to: Path,
    *,
    task: str | None = None,
    include_path: Sequence[str] = (),
    allow_holdout: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> list[Path]:
    """Writes a folder for each sample below `to`, and returns them.

    `include_path` has the folders of code that may be used, which the saved plan alone does not allow. Raises PlanError
    for a sample that the run does not have, or that is of a hold-out set unless `allow_holdout`; DatasetError when the
    data is not that of the run; RunFolderError for a folder that is there.
    """
    plan = to_read(run, include_path)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|", plan.connection.api_key_env):
        raise RunFolderError(f"{run}: api_key_env of its plan is no name of a variable")
    prints, sessions = run_folder.saved_fingerprints(run), run_folder.sessions(run)
    chosen = _chosen_tasks(plan, task)
    prepared = [_as_asked(p, prints, run) for p in prepare(replace(chosen, no_reference=True))]
    wanted = dict.fromkeys(samples)
    packed = [_pack(run, plan, prepared, sample, sessions, allow_holdout=allow_holdout) for sample in wanted]
    folders = [to / _name(one) for one in packed]
    taken = next((folder for folder in folders if folder.exists()), None)
    if taken is not None:
        raise RunFolderError(f"{taken} is there already", hint="Choose another folder with -o, or delete it.")
    for one, folder in zip(packed, folders, strict=True):
        _write(one, folder, SecretMask(plan.connection, environ))
    return folders


# ------------------------------------------------------------------------------------------------- what is wanted


def _chosen_tasks(plan: Plan, task: str | None) -> Plan:
    if task is None:
        return plan
    names = [spec.name for spec in plan.tasks]
    if task not in names:
        raise PlanError(f"--task {task}: the run has no such task.{nearest(task, names)}")
    return replace(plan, tasks=tuple(spec for spec in plan.tasks if spec.name == task))


def _as_asked(p: PreparedTask, prints: Mapping[str, Mapping[str, str]], run: Path) -> PreparedTask:
    """The task, where it asks what the run asked."""
    differing = run_folder.differences(dict(prints.get(p.task.name, {})), p.fingerprint)
    if differing:
        raise DatasetError(
            f"{p.task.name} does not ask what {run} asked: {'; '.join(differing)}",
            hint="Put the data back that the run was made with, and use the version of serve-eval that "
            "environment.json names.",
        )
    return p


def _pack(
    run: Path,
    plan: Plan,
    prepared: Sequence[PreparedTask],
    name: str,
    sessions: Sequence[Mapping[str, Any]],
    *,
    allow_holdout: bool,
) -> _Packed:
    found = [(p, sample) for p in prepared if (sample := _sample(plan, p, name)) is not None]
    if not found:
        known = [sample.id for p in prepared for sample in p.dataset.samples]
        raise PlanError(f"--sample {name}: the run has no such sample.{nearest(name, known)}")
    if len(found) > 1:
        tasks = ", ".join(p.task.name for p, _ in found)
        raise PlanError(f"--sample {name}: {tasks} all have one of that id", hint="Say which with --task.")
    p, sample = found[0]
    if HOLDOUT in sample.metadata and not allow_holdout:
        raise PlanError(
            f"--sample {name}: is of a hold-out set, whose texts are not to be shown",
            hint="A capsule that stays with you: --allow-holdout.",
        )
    file = run / "samples" / f"{file_stem(p.task.name)}.jsonl"
    records = [record for record in journal.read(file) if record.id == name] if file.exists() else []
    if not records:
        raise PlanError(f"--sample {name}: was not asked yet", hint=f"serve-eval run --resume {shlex.quote(str(run))}")
    attempts = [attempt for record in records for attempt in _result(record).attempts]
    asked_s = max((attempt.start_s for attempt in attempts), default=0.0)
    return _Packed(run=run, plan=plan, p=p, sample=sample, records=records, session=_session(sessions, asked_s))


def _sample(plan: Plan, p: PreparedTask, name: str) -> Sample | None:
    times = plan.times(p.task.name)
    samples = p.dataset.samples if times == 1 else Repeated(p.dataset.samples, times)
    return next((sample for sample in samples if sample.id == name), None)


def _session(sessions: Sequence[Mapping[str, Any]], at_s: float) -> Mapping[str, Any]:
    """The session that was under way then; its start is noted in whole seconds."""
    begun = [s for s in sessions if datetime.fromisoformat(s["started_at"]).timestamp() <= at_s]
    return (begun or list(sessions) or [{}])[-1]


def _result(record: Record) -> Any:
    return record.response if record.response is not None else record.failure


def _name(one: _Packed) -> str:
    """Of task and sample; an id that no folder can have as it is, or that is long, with its hash behind it."""
    name, told = one.sample.id, re.sub(r"[^A-Za-z0-9_.-]", "-", one.sample.id)[:NAME_LENGTH]
    mark = "" if told == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{one.p.task.file_stem}_{told}{mark}"


# --------------------------------------------------------------------------------------------------- what is written


def _write(one: _Packed, folder: Path, mask: SecretMask) -> None:
    bodies = _bodies(one)
    if any(map(mask.holds, bodies.values())):
        raise PlanError(
            f"{one.sample.id}: what was sent holds a secret of the environment, and a capsule has it byte for byte",
            hint="Unset that variable if it is none.",
        )
    _made(folder)
    try:
        logs = _logs(one, folder, mask)
        texts = {
            "curl.sh": _script(one, bodies),
            "expected.json": _masked(_expected(one), mask),
            "actual.json": _masked(_actual(one), mask),
            "versions.json": _masked(_versions(one), mask),
            "README.md": mask(_readme(one, list(bodies), logs)),
        }
        for name, data in {**bodies, **{name: text.encode() for name, text in texts.items()}}.items():
            write_private(folder / name, data)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _masked(told: Mapping[str, Any], mask: SecretMask) -> str:
    """JSON without secrets: records and plans are made plain first, so that what is in them is looked at too."""
    return pretty_json(mask.of(msgspec.to_builtins(told, str_keys=True))).decode()


def _made(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written: {error.strerror}", hint="Choose another folder with -o."
        ) from error


def _bodies(one: _Packed) -> dict[str, bytes]:
    """What was sent, by the name of its file: one body, or one for each choice of the sample."""
    request = request_of(one.p.task, one.sample)
    prompts = [context + choice for context, choice in one.sample.continued] if one.sample.choices else [request.prompt]
    model = one.session.get("endpoint", {}).get("model") or one.plan.model
    if not model:
        raise RunFolderError(f"{one.run}: neither its plan nor its sessions tell which model was asked")
    over = logprobs.FIELDS[_form(one)] if request.prompt_logprobs else None
    encoded = [
        wire.encode(
            msgspec.structs.replace(request, prompt=prompt),
            model,
            stream=bool(one.attempts and one.attempts[-1].streamed),
            max_tokens_field=one.plan.connection.max_tokens_field,
            over=over,
        )
        for prompt in prompts
    ]
    if len(encoded) == 1:
        return {"body.json": encoded[0]}
    return {f"body-{number}.json": body for number, body in enumerate(encoded, 1)}


def _form(one: _Packed) -> LogprobsForm:
    """How log-probabilities were asked for, as the probe of the session found out."""
    told = [found["seen"] for found in one.session.get("abilities", ()) if found["need"] == Need.PROMPT_LOGPROBS]
    return next((form for form in logprobs.FIELDS if told and told[0].startswith(f"{form}: ")), "echo")


def _script(one: _Packed, bodies: Mapping[str, bytes]) -> str:
    connection = one.plan.connection
    route = wire.route(one.sample.prompt)
    lines = [
        "#!/bin/sh",
        "# Sends the request again. Keys come from variables.",
        "set -e",
        'CDPATH= cd -- "$(dirname -- "$0")"',
    ]
    base_url = shlex.quote(escaped(_base_url(one)))
    lines.append(f'[ -n "${BASE_URL}" ] || {BASE_URL}={base_url}')
    names = []
    if connection.api_key_env:
        names = [connection.api_key_env]
        lines.append(f': "${{{connection.api_key_env}:=none}}"')
    for name, body in bodies.items():
        sent = Sent(url=route, body=msgspec.json.decode(body))
        lines += [curl(sent, connection, names, body_file=name, base_variable=BASE_URL), "echo"]
    return "\n".join(lines) + "\n"


def _base_url(one: _Packed) -> str:
    """Where it was sent; of a session that tells nothing, where the plan says."""
    told = one.session.get("endpoint", {}).get("base_url") or one.plan.launcher.options.get("base_url")
    return str(told or "http://localhost:8000/v1")


def _expected(one: _Packed) -> dict[str, Any]:
    sample = one.sample
    told: dict[str, Any] = {"task": one.p.task.name, "sample": sample.id, "target": sample.target}
    metric = one.p.task.metric
    told["full_marks"] = metric.hi if metric.higher_is_better else metric.lo
    if sample.choices:
        told["choices"] = sample.choices
    return {**told, "metadata": dict(sample.metadata)}


def _actual(one: _Packed) -> dict[str, Any]:
    """The score, the answer and every failure before it, as they were kept."""
    lines = scores_on_file(one.run / "scores" / f"{one.p.task.file_stem}.jsonl")
    return {
        "score": lines.get(one.sample.id),
        "response": next((record.response for record in one.records if record.response is not None), None),
        "failures": [record.failure for record in one.records if record.failure is not None],
    } | {"attempts": one.attempts}


def _versions(one: _Packed) -> dict[str, Any]:
    return {
        "session": one.session,
        "model": one.plan.model,
        "launcher": one.plan.launcher,
        "connection": one.plan.connection,
        "fingerprint": one.p.fingerprint,
    }


def _logs(one: _Packed, folder: Path, mask: SecretMask) -> str:
    """Writes what the servers' logs say around the request, and tells of it."""
    attempts = one.attempts
    found: list[str] = []
    if not attempts:
        return "none: nothing tells when it was sent"
    start_s, end_s = min(a.start_s for a in attempts) - AROUND_S, max(a.end_s for a in attempts) + AROUND_S
    files = log_files(one.run, [dict(one.session)])
    for path in files:
        lines = [mask(line.text) for line in between(read(path), start_s, end_s)][-LOG_LINES:]
        if lines:
            name = path.name if path.name not in found else f"{len(found)}-{path.name}"
            if not found:
                _made(folder / "logs")
            write_private(folder / "logs" / name, "\n".join([*lines, ""]).encode())
            found.append(name)
    if found:
        return f"what the servers' logs say from {AROUND_S:g} s before it to {AROUND_S:g} s after it"
    return "none: " + ("no line of the logs has a time near it" if files else "the run has no logs of servers")


def _readme(one: _Packed, bodies: Sequence[str], logs: str) -> str:
    connection = one.plan.connection
    variables = [connection.api_key_env, *variables_in(*connection.headers.values(), connection.proxy or "")]
    attempts = one.attempts
    said = "It was answered." if any(r.response is not None for r in one.records) else "It was never answered."
    with suppress(IndexError, OverflowError):
        said += f" First sent {datetime.fromtimestamp(attempts[0].start_s, UTC):%Y-%m-%d %H:%M:%S} UTC."
    return _README.format(
        base_url=_base_url(one),
        bodies=", ".join(bodies),
        variables=", ".join(filter(None, variables)) or "none is needed",
        logs=logs,
        task=one.p.task.name,
        sample=one.sample.id,
        said=said,
    )
