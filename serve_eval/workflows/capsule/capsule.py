"""Write a folder that replays one request of a run, with its response, server and logs.

It is made for sharing. It has variables in place of keys, and secrets of the environment are
removed from everything that others wrote. The request itself is written byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.client.connection import SecretMask
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins.scope import with_scope
from serve_eval.report.document import Conclusion, Document, Statement, make_header
from serve_eval.shell_words import quote_path
from serve_eval.storage import run_folder
from serve_eval.storage.sessions import read_sessions
from serve_eval.workflows.capsule.contents import fits, put_in_place, write
from serve_eval.workflows.capsule.packed import Packed, check_unchanged, choose_tasks, pack

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
    set unless `allow_holdout`; DatasetError if the data differs from that of the run;
    RunFolderError for a folder that exists and holds something else.
    """
    plan = to_read(run, include_path)
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
        story="capsule",
        command=f"serve-eval show {quote_path(run)} --capsule",
        header=make_header(0),
        conclusions=[Conclusion(name=str(one), outcome="WRITTEN") for one in folders],
        noun="capsules",
        statements=[Statement(label="holds", text=HOLDS)],
        commands=[f"sh {quote_path(one / 'curl.sh')}" for one in folders],
    )
