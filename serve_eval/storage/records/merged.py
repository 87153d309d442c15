"""Join the records of shards in the folder of one run."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from serve_eval.storage.archive import whole_lines
from serve_eval.storage.file_names import (
    PROOFS_FILE,
    TRACE_FILE,
    cases_file,
    executions_file,
    judgements_file,
    judges_proofs_file,
    samples_file,
)
from serve_eval.storage.journal import index_lines
from serve_eval.storage.records.media import merge_media
from serve_eval.storage.records.prompts import merge_prompts
from serve_eval.whole_file import replace_file


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
