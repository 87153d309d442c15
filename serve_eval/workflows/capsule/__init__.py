"""Write a folder that replays one request of a run, with its response, server and logs.

It is made for sharing. It has variables in place of keys, and secrets of the environment are
removed from everything that others wrote. The request itself is written byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.client.connection import SecretMask, variables_in
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins.scope import with_scope
from serve_eval.report.document import Conclusion, Document, Statement, make_header
from serve_eval.shell_words import quote_path
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import LOGS
from serve_eval.storage.json_files import pretty_json, write_private
from serve_eval.storage.scores import read_scores
from serve_eval.storage.server_logs import between, log_files, read
from serve_eval.storage.sessions import read_sessions
from serve_eval.whole_file import PARTIAL
from serve_eval.workflows.capsule.packed import (
    Packed,
    base_url_of,
    bodies_of,
    check_unchanged,
    choose_tasks,
    pack,
    script_of,
)

NAME_LENGTH = 80
"""Characters of a sample id that the name of a folder contains."""


@with_scope
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
    """Write a folder for each sample below `to`, and return the folders.

    `include_path` lists folders with code that may be loaded; the saved plan alone does not permit
    that. Raises PlanError for a sample that the run does not have, or that belongs to a hold-out
    set unless `allow_holdout`, and if `to` is in a run without prompts; DatasetError if the data
    differs from that of the run; RunFolderError for a folder that exists and holds something else.
    """
    plan = to_read(run, include_path)
    if plan.no_prompts and to.resolve().is_relative_to(run.resolve()):
        raise PlanError(
            f"{run} keeps no prompts, which a capsule needs",
            hint="Write it to another folder: -o DIR",
        )
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|", plan.connection.api_key_env):
        raise RunFolderError(f"{run}: api_key_env of its plan is not the name of a variable")
    prints, sessions = run_folder.read_fingerprints(run), read_sessions(run)
    chosen = choose_tasks(plan, task)
    prepared = [
        check_unchanged(p, prints, run) for p in prepare(replace(chosen, no_reference=True))
    ]
    wanted = dict.fromkeys(samples)
    packed = [
        pack(run, plan, prepared, sample, sessions, allow_holdout=allow_holdout)
        for sample in wanted
    ]
    folders = [to / _name(one) for one in packed]
    mask = SecretMask(plan.connection, environ)
    made = [write(one, folder, mask) for one, folder in zip(packed, folders, strict=True)]
    other = next((f for f, new in zip(folders, made, strict=True) if not fits(new, f)), None)
    for new, folder in zip(made, folders, strict=True):
        put_in_place(new, folder, keep=other is None)
    if other is not None:
        raise RunFolderError(
            f"{other} already exists and holds something else",
            hint="Choose another folder with -o, or delete it.",
        )
    return folders


def _name(one: Packed) -> str:
    """Return the name of a folder: task and sample.

    A hash is added to an id that is too long or not a valid folder name.
    """
    name, told = one.sample.id, re.sub(r"[^A-Za-z0-9_.-]", "-", one.sample.id)[:NAME_LENGTH]
    mark = "" if told == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{one.p.task.file_stem}_{told}{mark}"


HOLDS = "body.json is the request, curl.sh asks it again, README.md says what else is there"


def make_document(run: Path, folders: Sequence[Path]) -> Document:
    """Return the document of the folders, with the commands that ask their requests again."""
    return Document(
        "capsule",
        f"serve-eval show {quote_path(run)} --capsule",
        make_header(0),
        conclusions=[Conclusion(str(one), "WRITTEN") for one in folders],
        noun="capsules",
        statements=[Statement("holds", HOLDS)],
        commands=[f"sh {quote_path(one / 'curl.sh')}" for one in folders],
    )


AROUND_S = 10.0
"""Seconds before and after the request that the logs cover."""
LOG_LINES = 2000
"""Most lines that are kept of a log."""
_README = """# Send one request of serve-eval again

    sh curl.sh                                    # to {base_url}
    BASE_URL=http://host:8000/v1 sh curl.sh       # to another server

| file | content |
|---|---|
| {bodies} | the request, byte for byte |
| curl.sh | sends it; keys come from variables: {variables} |
| expected.json | the expected answer |
| actual.json | the response: the answer, its score, every attempt with its times |
| versions.json | the endpoint as it described itself, and the software that sent the request |
| logs/ | {logs} |

Task {task}, sample {sample}. {said}
"""


def write(one: Packed, place: Path, mask: SecretMask) -> Path:
    """Write a new folder next to `place`, for `put_in_place`, and return it.

    One that a killed command left there is replaced. Raises PlanError if the request contains a
    secret.
    """
    folder = place.with_name(f".{place.name}{PARTIAL}")
    bodies = bodies_of(one)
    if any(map(mask.holds, bodies.values())):
        raise PlanError(
            f"{one.sample.id}: the request contains a secret of the environment, and a capsule"
            " holds it byte for byte",
            hint="Unset that variable if it is not a secret.",
        )
    shutil.rmtree(folder, ignore_errors=True)
    _make(folder)
    try:
        logs = _logs(one, folder, mask)
        texts = {
            "curl.sh": script_of(one, bodies),
            "expected.json": _mask(_describe_expected(one), mask),
            "actual.json": _mask(_actual(one), mask),
            "versions.json": _mask(
                {
                    "session": one.session.stored,
                    "model": one.plan.model,
                    "launcher": one.plan.launcher,
                    "connection": one.plan.connection,
                    "fingerprint": one.p.fingerprint,
                },
                mask,
            ),
            "README.md": mask(_readme(one, list(bodies), logs)),
        }
        for name, data in {
            **bodies,
            **{name: text.encode() for name, text in texts.items()},
        }.items():
            write_private(folder / name, data)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def fits(new: Path, place: Path) -> bool:
    """Return True if nothing is at a place, or exactly what is new."""
    return not place.exists() or _read_all(new) == _read_all(place)


def put_in_place(new: Path, place: Path, *, keep: bool) -> None:
    """Give a new folder its name, unless it is there already; without `keep`, remove it."""
    if keep and not place.exists():
        new.rename(place)
    else:
        shutil.rmtree(new, ignore_errors=True)


def _read_all(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, or nothing for what is no folder."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def _mask(told: Mapping[str, Any], mask: SecretMask) -> str:
    """Return JSON without secrets.

    Records and plans are converted to plain values first, so that their fields are masked too.
    """
    return pretty_json(mask.of(msgspec.to_builtins(told, str_keys=True))).decode()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be written: {error.strerror}", hint="Choose another folder with -o."
        ) from error


def _describe_expected(one: Packed) -> dict[str, Any]:
    sample = one.sample
    told: dict[str, Any] = {"task": one.p.task.name, "sample": sample.id, "target": sample.target}
    metric = one.p.task.metric
    told["full_marks"] = metric.hi if metric.higher_is_better else metric.lo
    if sample.choices:
        told["choices"] = sample.choices
    return {**told, "metadata": dict(sample.metadata)}


def _actual(one: Packed) -> dict[str, Any]:
    """Return the score, the response and every failure before it, as stored."""
    lines = read_scores(one.run, one.p.task.name, unfinished=True)
    return {
        "score": lines.get(one.sample.id),
        "response": next(
            (record.response for record in one.records if record.response is not None), None
        ),
        "failures": [record.failure for record in one.records if record.failure is not None],
    } | {"attempts": one.attempts}


def _logs(one: Packed, folder: Path, mask: SecretMask) -> str:
    """Write the lines of the servers' logs around the request, and return a description of them."""
    attempts = one.attempts
    found: list[str] = []
    if not attempts:
        return "none: the time of the request is not known"
    start_s, end_s = (
        min(a.start_s for a in attempts) - AROUND_S,
        max(a.end_s for a in attempts) + AROUND_S,
    )
    files = log_files(one.run, [one.session])
    for path in files:
        lines = [mask(line.text) for line in between(read(path), start_s, end_s)][-LOG_LINES:]
        if lines:
            name = path.name if path.name not in found else f"{len(found)}-{path.name}"
            if not found:
                _make(folder / LOGS)
            write_private(folder / LOGS / name, "\n".join([*lines, ""]).encode())
            found.append(name)
    if found:
        return f"lines of the servers' logs from {AROUND_S:g} s before to {AROUND_S:g} s after it"
    return "none: " + (
        "no line of the logs is near that time" if files else "the run has no logs of servers"
    )


def _readme(one: Packed, bodies: Sequence[str], logs: str) -> str:
    connection = one.plan.connection
    variables = [
        connection.api_key_env,
        *variables_in(*connection.headers.values(), connection.proxy or ""),
    ]
    attempts = one.attempts
    said = (
        "It was answered."
        if any(r.response is not None for r in one.records)
        else "It was never answered."
    )
    with suppress(IndexError, OverflowError):
        said += (
            f" First sent {datetime.fromtimestamp(attempts[0].start_s, UTC):%Y-%m-%d %H:%M:%S} UTC."
        )
    return _README.format(
        base_url=base_url_of(one),
        bodies=", ".join(bodies),
        variables=", ".join(filter(None, variables)) or "none is needed",
        logs=logs,
        task=one.p.task.name,
        sample=one.sample.id,
        said=said,
    )
