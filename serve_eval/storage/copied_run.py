"""Fill a new run folder with the answers of other runs or shards.

copying.json marks the folder (copy_mark). The same command empties a marked folder and
fills it again. No other command asks anything there before the copy is complete.
"""

from __future__ import annotations

import hashlib
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from serve_eval.errors import RunFolderError
from serve_eval.schema import Plan
from serve_eval.storage import run_folder
from serve_eval.storage.archive import whole_lines
from serve_eval.storage.command_folder import LEFT
from serve_eval.storage.file_names import (
    COPY_FILE,
    JUNIT_FILE,
    LOGS,
    PAGES,
    PLAN_FILE,
    PROMPTS,
    PROOFS_FILE,
    PROTOCOL_FILES,
    RECORDS_OF_ANSWERS,
    REPORT_FILE,
    SCORES,
    SUMMARY_FILE,
    TRACE_FILE,
    cases_file,
    executions_file,
    judgements_file,
    judges_proofs_file,
    samples_file,
    task_file,
)
from serve_eval.storage.journal import index_lines
from serve_eval.storage.json_files import pretty_json, write_private
from serve_eval.storage.prompts import merge_media, merge_prompts
from serve_eval.storage.run_folder import CopyMark, find_copy
from serve_eval.whole_file import PARTIAL, replace_file

ANSWERS_FROM = "the answers are from "
"""Beginning of the warning in a report about answers that another run asked."""
COPIED = (
    *(PLAN_FILE, REPORT_FILE, *PAGES, JUNIT_FILE, SUMMARY_FILE, TRACE_FILE, *PROTOCOL_FILES),
    *(SCORES, PROMPTS, LOGS, *RECORDS_OF_ANSWERS),
)
"""Files and folders that a copy may have."""


def mark_copy(sources: Sequence[Path], plan: Plan) -> CopyMark:
    """Return the mark of a copy that is begun."""
    digest = hashlib.sha256(msgspec.json.encode(plan)).hexdigest()
    return CopyMark(sources=tuple(str(one.absolute()) for one in sources), plan=digest)


def check_copy(path: Path, mark: CopyMark) -> None:
    """Raise RunFolderError if a path is neither new, nor empty, nor a copy to make again.

    A finished copy is made again only by the command that wrote it, which may have been killed
    before it told its result.
    """
    if not path.exists() or (path.is_dir() and _may_begin(path, mark)):
        return
    raise RunFolderError(
        f"{path} exists and is not an empty folder", hint="Choose another folder with -o."
    )


def _may_begin(path: Path, mark: CopyMark) -> bool:
    names = {one.name for one in path.iterdir()} - LEFT
    if not names:
        return True
    known = {name for one in (COPY_FILE, *COPIED) for name in (one, f"{one}{PARTIAL}")}
    if not names <= known:
        return False
    found = find_copy(path)
    if found is None:
        return run_folder.read_claim(path) == COPY_FILE and not run_folder.holds_run(path)
    return not found.done or found == replace(mark, done=True)


@contextmanager
def open_copy(
    path: Path,
    mark: CopyMark,
    plan: Plan,
    fingerprints: Mapping[str, Mapping[str, str]],
    *,
    own: bool,
) -> Iterator[Path]:
    """Yield the folder of a copy, new or emptied, locked until the end of the block.

    `end_copy` ends it. Raises RunFolderError as `check_copy` and `open_folder` do.
    """
    with run_folder.hold(path, COPY_FILE, "unfinished copy"):
        check_copy(path, mark)
        write_private(path / COPY_FILE, pretty_json(mark))
        for name in COPIED:
            _remove(path / name)
        run_folder.bind(path, plan, fingerprints, own=own)
        yield path


def end_copy(path: Path, mark: CopyMark) -> None:
    """Note that a copy is complete, with its report."""
    write_private(path / COPY_FILE, pretty_json(replace(mark, done=True)))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_answers(source: Path, target: Path, tasks: Iterable[str]) -> None:
    """Copy the answers and prompts of these tasks, and how they were asked, to another run folder.

    Raises OSError.
    """
    kept = [
        task_file(Path(folder), task) for folder in (*RECORDS_OF_ANSWERS, PROMPTS) for task in tasks
    ]
    for place in (*map(Path, PROTOCOL_FILES), *kept):
        if (source / place).exists():
            (target / place).parent.mkdir(mode=0o700, exist_ok=True)
            with (source / place).open("rb") as old, replace_file(target / place) as new:
                shutil.copyfileobj(old, new)


def merge_journals(shards: Sequence[Path], run: Path, task: str, order: Mapping[str, int]) -> None:
    """Write the journal of a task with the lines of all shards, unchanged.

    The lines are sorted by `order`, which has a rank for each sample id, so that the result does
    not depend on the times at which the shards ran. Lines of one sample keep their order. Raises
    OSError, and RunFolderError for a damaged line.
    """
    import numpy

    ranks, sources, offsets, sizes = (array("q") for _ in range(4))
    for number, shard in enumerate(shards):
        file = samples_file(shard, task)
        for sample, offset, size in index_lines(file) if file.exists() else ():
            ranks.append(order[sample])
            sources.append(number)
            offsets.append(offset)
            sizes.append(size)
    sorted_lines = numpy.argsort(numpy.frombuffer(ranks, dtype=numpy.int64), kind="stable")
    opened = {
        number: samples_file(shards[number], task).open("rb") for number in sorted(set(sources))
    }
    try:
        with replace_file(samples_file(run, task)) as out:
            for i in sorted_lines.tolist():
                source = opened[sources[i]]
                source.seek(offsets[i])
                out.write(source.read(sizes[i]))
    finally:
        for source in opened.values():
            source.close()


def merge_other_records(shards: Sequence[Path], run: Path, tasks: Iterable[str]) -> None:
    """Join what else the shards recorded about their answers: one shard's lines after another's.

    These are the prompts with their media, the results of running and judging answers, the proofs
    of connections, the servers of each request and how cases were asked. Raises OSError, and
    RunFolderError for a damaged line.
    """
    _join([shard / PROOFS_FILE for shard in shards], run / PROOFS_FILE)
    _join([shard / TRACE_FILE for shard in shards], run / TRACE_FILE)
    merge_media(shards, run)
    for task in tasks:
        for name in (executions_file, judgements_file, cases_file):
            _join([name(shard, task) for shard in shards], name(run, task))
        merge_prompts(shards, run, task)
        judged = [judges_proofs_file(judgements_file(shard, task)) for shard in shards]
        _join(judged, judges_proofs_file(judgements_file(run, task)))


def _join(sources: Iterable[Path], target: Path) -> None:
    found = [file for file in sources if file.exists()]
    if not found:
        return
    target.parent.mkdir(mode=0o700, exist_ok=True)
    with replace_file(target) as out:
        for file in found:
            out.writelines(whole_lines(file))
