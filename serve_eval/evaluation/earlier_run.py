"""Continue an earlier run: find it, or choose which of its answers are asked again.

A limit is a part of the protocol. It never changes within a run, and it is chosen so that the value
does not depend on it: a limit that cut no answer stays as it is, however long it is, so that runs
stay comparable; one that did is doubled, since nothing is known of a cut answer but that it is
longer.

Records of what is asked again, and of questions that no longer exist, move from the journal to
archive/<time>/: they are kept but never count.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import serve_eval
from serve_eval.cases.expansion import canonical_sha256
from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.settle import settle
from serve_eval.frozen import freeze_places
from serve_eval.plan.prepared_task import PreparedTask, find_roots
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Cut, Plan, Report, Sample, Spec, Task, TaskReport, is_mutable
from serve_eval.schema.exchange import FEW_TOKENS, raise_limit, read_limit
from serve_eval.storage.archive import (
    AskedCase,
    add_asked_cases,
    archive,
    count_archived,
    read_asked_cases,
)
from serve_eval.storage.command_folder import OUTPUTS
from serve_eval.storage.file_names import (
    ARCHIVE,
    PLAN_FILE,
    cases_file,
    judgements_file,
    samples_file,
)
from serve_eval.storage.folder_results import list_unfinished
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.run_folder import list_differences, plan_and_owner


@with_scope
async def find_unfinished_run(plan: Plan, environ: Mapping[str, str]) -> tuple[Path, float] | None:
    """Return the folder in outputs/ that this plan would resume, and the age of its last answer.

    It is the newest run that this user began with the same plan, endpoint, data and protocol, and
    that has answers but no report. Returns None if there is none, or if the plan has a problem,
    which the run reports.
    """
    for folder, age_s in list_unfinished(PLAN_FILE, has_report):
        try:
            saved, own = plan_and_owner(folder)
            if not own or saved.launcher != plan.launcher or saved.model != plan.model:
                continue
            settled = await settle(plan, folder, environ)
            prepared = await asyncio.to_thread(prepare, settled)
            prints = {one.task.name: one.fingerprint for one in prepared}
            if not list_differences(folder, settled, prints):
                return folder, age_s
        except ServeEvalError:
            continue
    return None


AUTO = "auto"
"""The word for a limit that an earlier run decides."""


@freeze_places
class _Earlier:
    """A task of a finished run, and the limit of its answers."""

    folder: Path
    task: TaskReport
    limit: int


def choose_limits(plan: Plan, out_dir: Path | None) -> tuple[Plan, list[str]]:
    """Return the plan with the limit of each task, and a line about each.

    The newest finished run of the model and the task decides, in the folder in which the run
    folder lies (None: outputs/). Without one the limit stays.
    """
    place = OUTPUTS if out_dir is None else out_dir.absolute().parent
    runs = sorted(_list_runs(place, plan), key=lambda run: run[1].started_at, reverse=True)
    tasks, lines = [], []
    for spec in plan.tasks:
        earlier = next(_find_task(spec, runs), None)
        tasks.append(spec if earlier is None else _with_limit(spec, earlier))
        lines.append(f"{spec.name}: {_describe(earlier, place)}")
    return replace(plan, tasks=tuple(tasks)), lines


def find_earlier_task(
    plan: Plan, spec: Spec, out_dir: Path | None
) -> tuple[Path, TaskReport] | None:
    """Return the newest finished run of a task by the model of a plan, next to a run folder."""
    place = OUTPUTS if out_dir is None else out_dir.absolute().parent
    runs = sorted(_list_runs(place, plan), key=lambda run: run[1].started_at, reverse=True)
    found = next(_find_task(spec, runs), None)
    return None if found is None else (found.folder, found.task)


def _list_runs(place: Path, plan: Plan) -> Iterator[tuple[Path, Report]]:
    """Yield the finished runs in a folder that asked the model of a plan."""
    for folder in sorted(place.iterdir()) if place.is_dir() else ():
        try:
            if not folder.is_symlink() and has_report(folder):
                report = read_report(folder)
                if plan.model in (None, report.plan.model) and not report.rehearsal:
                    yield folder, report
        except (OSError, RunFolderError):
            continue


def _find_task(spec: Spec, runs: list[tuple[Path, Report]]) -> Iterator[_Earlier]:
    for folder, report in runs:
        for task in report.tasks:
            limit = read_limit(task.fingerprint)
            known = task.result.task == spec.name and task.result.scored
            if known and limit is not None and limit > FEW_TOKENS:
                yield _Earlier(folder, task, limit)


def _with_limit(spec: Spec, earlier: _Earlier) -> Spec:
    cut = earlier.task.result.cut.get(Cut.MAX_TOKENS, 0)
    limit = raise_limit(earlier.limit) if cut else earlier.limit
    return replace(spec, options={**spec.options, "max_tokens": limit})


def _describe(earlier: _Earlier | None, place: Path) -> str:
    """Return which limit was chosen, and why."""
    if earlier is None:
        return (
            f"max_tokens auto found no finished run of this model and task in {place}: the limit"
            " stays; after this run auto knows the lengths"
        )
    result, limit = earlier.task.result, earlier.limit
    of = f"of {result.scored:,} answers in {earlier.folder}"
    if cut := result.cut.get(Cut.MAX_TOKENS, 0):
        return f"max_tokens {raise_limit(limit)}: {limit} cut {cut:,} {of}"
    said = f"max_tokens {limit}, which cut none {of}"
    if earlier.task.traffic.completion_tokens and result.longest_whole is not None:
        said += f"; the longest has {result.longest_whole:,} tokens"
    if window := result.cut.get(Cut.WINDOW, 0):
        said += f"; the server's window cut {window:,}, which no limit of ours changes"
    return said


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
