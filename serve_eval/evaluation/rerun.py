"""Which answers of a run folder are asked again, and where their records go.

What is asked again, and what belongs to a question that is gone, is moved out of the journal to archive/<time>/, so
that it is kept and never counted. cases/<task>.jsonl has a line for each sample of a user's cases that was asked: under
which expectation, scorer and versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

import serve_eval
from serve_eval.cases.keys import canonical_sha256
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.judgements import FOLDER as JUDGED
from serve_eval.schema import DataRoots, Plan, Sample, Task, lives

Rerun = Literal["never", "failed", "changed", "version", "all"]
"""What is asked again beside questions that changed, each with those before it: nothing; what failed; what is expected
or scored otherwise than when it was answered; what another version of serve-eval or of the served software answered;
all."""

ARCHIVE, CASES = "archive", "cases"
_REPEAT = re.compile(r"#\d+$")


class _Record(msgspec.Struct):
    """So much of a line as tells whose it is."""

    id: str


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Under what a sample was asked. Expectations are hashes: a hold-out set has lines too."""

    id: str
    case: str
    question: str
    expected: str
    scorer: str
    scorer_version: int
    serve_eval: str
    server: str | None = None


_record = msgspec.json.Decoder(_Record)
_asked = msgspec.json.Decoder(Asked)
_encode = msgspec.json.Encoder().encode


def set_aside(
    folder: Path, plan: Plan, prepared: Sequence[PreparedTask], rerun: Rerun, *, server: str | None = None
) -> None:
    """Moves the records of what is asked again, and of questions that are gone, to the archive. No journal of the
    folder may be open. `server` is the version of the served software (None: not known yet, and not compared).

    Raises RunFolderError for a damaged line.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    for p in prepared:
        journal, told = _journal(folder, p.task), _ledger(folder, p.task)
        if not journal.exists() or not (lives(p.task.name) or rerun == "all"):
            continue
        stale = _stale(plan, p, rerun, server, told)
        _move(journal, folder / ARCHIVE / stamp, stale)
        if told.exists():
            _move(told, folder / ARCHIVE / stamp, stale)
        judged = folder / JUDGED / journal.name
        if rerun == "all" and judged.exists():  # else what was judged stays known: it is that of the same answer
            _move(judged, folder / ARCHIVE / stamp, stale)


def note_asked(folder: Path, task: Task, samples: Iterable[Sample], server: str | None) -> None:
    """Writes down under what these samples are going to be asked. Raises RunFolderError or JournalError when it cannot
    be written."""
    versions = task.protocol.get("scorers")
    assert isinstance(versions, Mapping)
    file = _ledger(folder, task)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    lines = [
        Asked(
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
    run_folder.write_private(file, b"".join([*_lines(file), *(_encode(line) + b"\n" for line in lines)]))


def archived(folder: Path, tasks: Sequence[Task]) -> list[str]:
    """A line for each task of which records lie in the archive: how many."""
    told = []
    for task in tasks:
        files = sorted(folder.glob(f"{ARCHIVE}/*/samples/{task.file_stem}.jsonl"))
        if count := sum(file.read_bytes().count(b"\n") for file in files):
            why = "their questions changed or are gone, or they were asked again"
            told.append(f"{task.name}: {count} records lie in {ARCHIVE}/ and do not count: {why}")
    return told


def _journal(folder: Path, task: Task) -> Path:
    return folder / "samples" / f"{task.file_stem}.jsonl"


def _ledger(folder: Path, task: Task) -> Path:
    return folder / CASES / f"{task.file_stem}.jsonl"


def _stale(plan: Plan, p: PreparedTask, rerun: Rerun, server: str | None, told: Path) -> Callable[[str], bool]:
    """Whether a record of that id is to be moved."""
    if rerun == "all":
        return lambda sample: True
    # All of them, and not the subset of a --limit, which changes with the cases.
    roots = DataRoots(roots=tuple(map(Path, plan.dataset_roots)), allow_hub=plan.allow_hub)
    known = {sample.id: sample for sample in p.task.load(roots, p.dataset.total).samples}
    if rerun in ("never", "failed"):
        return lambda sample: _base(sample) not in known
    before = {line.id: line for line in _decoded(told, _asked)}
    versions = p.task.protocol.get("scorers")
    assert isinstance(versions, Mapping)

    def stale(sample: str) -> bool:
        now, then = known.get(_base(sample)), before.get(sample)
        if now is None or then is None:
            return True
        if (then.expected, then.scorer_version) != (canonical_sha256(now.target), versions.get(then.scorer)):
            return True
        other_server = server is not None and then.server != server
        return rerun == "version" and (then.serve_eval != serve_eval.__version__ or other_server)

    return stale


def _base(sample: str) -> str:
    """The id of a repeat's sample."""
    return _REPEAT.sub("", sample)


def _lines(file: Path) -> Iterator[bytes]:
    """The whole lines of a file; a torn last one, which a kill leaves behind, is passed over."""
    if file.exists():
        with file.open("rb") as content:
            yield from (line for line in content if line.endswith(b"\n"))


_Line = TypeVar("_Line", _Record, Asked)


def _decoded(file: Path, decoder: msgspec.json.Decoder[_Line]) -> Iterator[_Line]:
    """What the lines of a file say. Raises RunFolderError at a damaged one."""
    for number, line in enumerate(_lines(file), 1):
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(
                f"{file}:{number}: a damaged record: {error}", hint="Delete that line: its sample is then asked again."
            ) from error


def _move(file: Path, archive: Path, stale: Callable[[str], bool]) -> None:
    """Moves lines of a file to the file of the same name in the archive, which has them before this one loses them."""
    moved: list[bytes] = []
    kept: list[bytes] = []
    for record, line in zip(_decoded(file, _record), _lines(file), strict=True):
        (moved if stale(record.id) else kept).append(line)
    if not moved:
        return
    target = archive / file.parent.name / file.name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    run_folder.write_private(target, b"".join(moved))
    run_folder.write_private(file, b"".join(kept))
