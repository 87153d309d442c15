"""Choose which answers of a run folder are asked again, and archive their records.

Records of what is asked again, and of questions that no longer exist, move from the journal to
archive/<time>/: they are kept but never count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import serve_eval
from serve_eval.cases.groups import canonical_sha256
from serve_eval.plan.prepared_task import PreparedTask, find_roots
from serve_eval.schema import Plan, Sample, Task, is_mutable
from serve_eval.storage.archive import (
    AskedCase,
    add_asked_cases,
    archive,
    count_archived,
    read_asked_cases,
)
from serve_eval.storage.file_names import ARCHIVE, cases_file, judgements_file, samples_file

Rerun = Literal["never", "failed", "changed", "version", "all"]
"""Sets of answers to ask again, in addition to changed questions. Each includes those before it.

* never: nothing.
* failed: what failed.
* changed: answers whose expected result or scorer changed since.
* version: answers made with another version of serve-eval or of the served software.
* all: everything.
"""

_REPEAT = re.compile(r"#\d+$")


def set_aside(
    folder: Path,
    plan: Plan,
    prepared: Sequence[PreparedTask],
    rerun: Rerun,
    *,
    server: str | None = None,
) -> None:
    """Move the records of what is asked again, and of deleted questions, to the archive.

    No journal of the folder may be open. `server` is the version of the served software (None: not
    known yet, and not compared). Raises RunFolderError for a damaged line.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    for p in prepared:
        name = p.task.name
        journal, cases, judged = (
            path(folder, name) for path in (samples_file, cases_file, judgements_file)
        )
        if not journal.exists() or not (is_mutable(name) or rerun == "all"):
            continue
        stale = _stale(folder, plan, p, rerun, server)
        archive(folder, stamp, journal, stale)
        archive(folder, stamp, cases, stale)
        if rerun == "all":  # Otherwise the judgements still belong to the same answers.
            archive(folder, stamp, judged, stale)


def note_asked(folder: Path, task: Task, samples: Iterable[Sample], server: str | None) -> None:
    """Record under which versions and expectations these samples are about to be asked.

    Raises RunFolderError or JournalError if that cannot be written.
    """
    versions = task.protocol.get("scorers")
    assert isinstance(versions, Mapping)
    lines = [
        AskedCase(
            id=sample.id,
            case=sample.metadata["case"],
            question=sample.metadata["question"],
            expected=canonical_sha256(sample.target),
            scorer=sample.metadata["scorer"],
            scorer_version=versions[sample.metadata["scorer"]],
            serve_eval=serve_eval.__version__,
            server=server,
        )
        for sample in samples
    ]
    add_asked_cases(folder, task.name, lines)


def describe_archived(folder: Path, tasks: Sequence[Task]) -> list[str]:
    """Return a line for each task with archived records, with their number."""
    told = []
    for task in tasks:
        if count := count_archived(folder, task.name):
            why = "their questions changed, were deleted or were asked again"
            told.append(f"{task.name}: {count} records are in {ARCHIVE}/ and do not count: {why}")
    return told


def _stale(
    folder: Path, plan: Plan, prepared: PreparedTask, rerun: Rerun, server: str | None
) -> Callable[[str], bool]:
    """Return a function that returns True for an id whose records must be archived."""
    if rerun == "all":
        return lambda sample: True
    # All samples, not the subset of a --limit, which changes with the cases.
    roots = find_roots(plan)
    known = {
        sample.id: sample for sample in prepared.task.load(roots, prepared.dataset.total).samples
    }
    if rerun in ("never", "failed"):
        return lambda sample: _base(sample) not in known
    before = read_asked_cases(folder, prepared.task.name)
    versions = prepared.task.protocol.get("scorers")
    assert isinstance(versions, Mapping)

    def stale(sample: str) -> bool:
        now, then = known.get(_base(sample)), before.get(sample)
        if now is None or then is None:
            return True
        if (then.expected, then.scorer_version) != (
            canonical_sha256(now.target),
            versions.get(then.scorer),
        ):
            return True
        other_server = server is not None and then.server != server
        return rerun == "version" and (then.serve_eval != serve_eval.__version__ or other_server)

    return stale


def _base(sample: str) -> str:
    """Return the id of a sample without the number of its repeat."""
    return _REPEAT.sub("", sample)
