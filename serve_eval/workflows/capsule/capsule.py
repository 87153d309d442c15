"""A folder that replays one request of a run: what was sent, what came back, who answered, and what
its log said then.

Made to be handed on: keys stand in it as variables, and what the environment holds as a secret is
taken out of all that was written by others. What was sent is written byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.client.secret_mask import SecretMask
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.sessions import read_sessions
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins.scope import with_scope
from serve_eval.workflows.capsule.contents import write
from serve_eval.workflows.capsule.packed import Packed, check_unchanged, choose_tasks, pack

NAME_LENGTH = 80
"""Characters of an id that the name of a folder has."""


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
    """Write a folder for each sample below `to`, and return them.

    `include_path` has the folders of code that may be used, which the saved plan alone does not
    allow. Raises PlanError for a sample that the run does not have, or that is of a hold-out set
    unless `allow_holdout`; DatasetError when the data is not that of the run; RunFolderError for a
    folder that is there.
    """
    plan = to_read(run, include_path)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*|", plan.connection.api_key_env):
        raise RunFolderError(f"{run}: api_key_env of its plan is no name of a variable")
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
    taken = next((folder for folder in folders if folder.exists()), None)
    if taken is not None:
        raise RunFolderError(
            f"{taken} is there already", hint="Choose another folder with -o, or delete it."
        )
    for one, folder in zip(packed, folders, strict=True):
        write(one, folder, SecretMask(plan.connection, environ))
    return folders


def _name(one: Packed) -> str:
    """Of task and sample; an id that no folder can have as it is, or that is long, with its hash
    behind it.
    """
    name, told = one.sample.id, re.sub(r"[^A-Za-z0-9_.-]", "-", one.sample.id)[:NAME_LENGTH]
    mark = "" if told == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{one.p.task.file_stem}_{told}{mark}"
