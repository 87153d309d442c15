"""Import published results as references: TensorRT-LLM's reference files, BioChatter's benchmark.

TensorRT-LLM's accuracy suite ignores unknown keys and entries that can never match, and keeps no
history. serve-eval rejects the first two and keeps rows that only an older file has. Anything
dropped, moved or remarkable is reported as an oddity but never corrected: the figures stay those of
the source. Comments and notes are not imported.

The rows of BioChatter's CSV files are matched to cases by BioChatter's own hash of the cases.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from serve_eval.cases.biochatter import AS_BIOCHATTER, RESULTS, SCORED_ELSEWHERE, ResultRow, read
from serve_eval.cases.questions import Skipped
from serve_eval.errors import DatasetError, ReferenceFileError
from serve_eval.frozen import freeze
from serve_eval.protocol.shared import build_task
from serve_eval.schema import AccuracySpec, DataRoots, Sample, Spec, Task
from serve_eval.verdicts import references
from serve_eval.whole_file import write_named_file
from serve_eval.workflows.references.entries import (
    build_taken_error,
    make_folder,
    write_entry,
    write_runs,
)
from serve_eval.workflows.references.trtllm_rows import (
    FileCount,
    SourceFiles,
    oddities_across,
    oddities_of_rows,
)

FOLDER = "tests/integration/defs/accuracy/references"
TRTLLM_COMMITS: Mapping[str, str] = {
    "SlimPajama-6B": "2a9abd95",
    "acceptance_length": "9645a994",
    "cnn_dailymail": "001b8e0a",
    "gpqa_diamond": "ed53795b",
    "gsm8k": "5bceeb1a",
    "gsm8k_inferencemax": "c64ee1a8",
    "gsm8k_inferencex": "5bceeb1a",
    "humaneval": "1262edbc",
    "json_mode_eval": "186f6ddf",
    "longbench_v1": "0e2003a9",
    "longbench_v2": "496e1509",
    "mixed_modality_omni": "2d0ab9f7",
    "mixed_modality_qwen_vl": "56efdd41",
    "mixed_modality_video_audio_omni": "49d9d428",
    "mmlu": "b35ac1b6",
    "mmmu": "029161f7",
    "passkey_retrieval_128k": "2a9abd95",
    "passkey_retrieval_64k": "1100b262",
    "videomme": "30d2c50c",
    "voxpopuli": "9496bfa2",
    "zero_scrolls": "54971871",
}
"""Commits of the snapshot from which the shipped files were made. Another checkout has others."""
TRTLLM_READ_ON = "2026-11-20"
"""The day on which that snapshot was read."""
TRTLLM_READ_LATER: Mapping[str, str] = {"acceptance_length": "2026-11-28"}
"""The days of files that were read again later."""

_MARK = "# Figures of "


@freeze
class ImportReport:
    """The result of an import.

    `oddities` are lines "file: model: text"; `lost` are those about figures that were not imported.
    `counts` are by source file, relative to the imported folder. Of the `written` files, `new` did
    not exist before, and `updated` have changed figures.
    """

    oddities: tuple[str, ...]
    lost: tuple[str, ...]
    counts: Mapping[str, FileCount]
    written: tuple[Path, ...]
    new: tuple[Path, ...]
    updated: tuple[Path, ...]


def import_directory(
    source: Path,
    target: Path,
    *,
    repository: str = "NVIDIA/TensorRT-LLM",
    commits: Mapping[str, str],
    read_on: str,
    read_later: Mapping[str, str] | None = None,
) -> ImportReport:
    """Write one `<task>.yaml` into `target` for every task of `source` and of `source`/older.

    Files in older are named `<task>_<commit>.yaml`. `commits` maps the stem of a file to its
    commit, and `read_on` is the day of reading, or `read_later` that of a single file; both are in
    the head of the files. The same arguments give the same bytes.

    If a file cannot be imported, nothing is written and ReferenceFileError is raised; also for a
    folder without files and for a target file that no import wrote.
    """
    if source.resolve() == target.resolve():
        raise ReferenceFileError(
            f"{target}: is also the folder to import from", hint="Write to another folder."
        )
    found = SourceFiles(source, repository)
    texts = {}
    for task in sorted({*found.newest, *found.older}):
        day = (read_later or {}).get(task, read_on)
        commit = commits.get(task)
        text = found.text_of(task, commit)
        texts[f"{task}.yaml"] = (
            _head(task, repository, None if found.of_several(task) else commit, day) + text
        )
    if not texts:
        raise ReferenceFileError(
            f"{source}: holds no *.yaml file", hint=f"Name a copy of {FOLDER}."
        )
    before = _write_files(texts, target)
    oddities = (*found.oddities, *oddities_of_rows(found.rows), *oddities_across(found.rows))
    return ImportReport(
        oddities=oddities,
        lost=tuple(found.lost),
        counts=dict(sorted(found.counts.items())),
        written=tuple(target / name for name in texts),
        new=tuple(target / name for name in texts if name not in before),
        updated=tuple(
            target / name for name, old in before.items() if _figures(old) != _figures(texts[name])
        ),
    )


def _head(task: str, repository: str, commit: str | None, read_on: str) -> str:
    at = f"commit {commit}" if commit else "commit not recorded"
    return (
        f"{_MARK}{repository}, {FOLDER}/{task}.yaml,\n# {at}, read on {read_on}. Only figures and"
        " names were taken; `old: true` marks rows of an older version.\n# Written by `serve-eval"
        " references import`. Put entries of your own into a folder of your own.\n"
    )


def _figures(text: str) -> list[str]:
    """Return the lines of a file without its head, which describes the import."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def _write_files(texts: Mapping[str, str], target: Path) -> dict[str, str]:
    """Write the files, and return the earlier text of those that existed, by name."""
    try:
        before = {
            name: (target / name).read_text("utf-8") for name in texts if (target / name).exists()
        }
        if foreign := [name for name, text in before.items() if not text.startswith(_MARK)]:
            names = ", ".join(str(target / name) for name in foreign)
            raise ReferenceFileError(
                f"{names}: not written by an import, so not changed",
                hint="Import into another folder.",
            )
        make_folder(target)
        for name, text in texts.items():
            write_named_file(target / name, text.encode())
    except (OSError, UnicodeDecodeError) as error:
        raise ReferenceFileError(
            f"{target}: cannot be written: {error}", hint="Import into another folder."
        ) from error
    return before


@freeze
class Written:
    """A reference that was written: its value in points, over `cases` of the task's cases.

    `of` is the number of all cases. `runs` counts the runs with scores per sample; 0 if only the
    mean is known.
    """

    task: str
    model: str
    value: float
    cases: int
    of: int
    runs: int


@dataclass(slots=True, kw_only=True)
class Imported:
    """The result of an import. Rows that belong to no case are orphans."""

    written: list[Written] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rows: int = 0
    matched: int = 0

    @property
    def orphans(self) -> int:
        return self.rows - self.matched


def import_results(
    files: Sequence[Path],
    tasks: Sequence[Spec],
    references_dir: Path,
    *,
    skipped: Mapping[str, Skipped] | None = None,
    reason: str | None = None,
) -> Imported:
    """Write a reference for each task and model with results.

    `skipped` are the cases that are not asked, by their hash. The value is the mean over the cases
    with a result, of the mean over their iterations. If every case has a result, the entry also has
    the scores of each sample. It has the protocol of its task as well, so that it judges no run
    that is scored differently.

    Raises DatasetError for rows that cannot be read, that were scored differently from the task, or
    that are results of one case in two files, which are two different tests; also if no row belongs
    to a case that is asked. Raises ReferenceFileError if the entry exists and no `reason` is given.
    """
    files = list(dict.fromkeys(files))
    _check_tests(files)
    found = Imported()
    built = [build_task(spec) for spec in tasks]
    samples = {task.name: list(task.load(DataRoots(), 1).samples) for task in built}
    homes = {
        sample.metadata["compat_md5"]: task.name for task in built for sample in samples[task.name]
    }
    every = [row for file in files for row in read(file)]
    asked = [row for row in every if row.md5 in homes]
    found.rows, found.matched = len(every), len(asked)
    by_task = _latest(asked, homes)
    lacking = _describe_unasked([row for row in every if row.md5 not in homes], skipped or {})
    if not found.matched:
        _nothing_matched(files, found.rows, lacking)
    for one in (one for one in built if by_task[one.name]):
        _check_scoring(one)
        if not reason:
            _check_new(_entries_of(one, references_dir), by_task[one.name])
    make_folder(references_dir)
    for one in built:
        for model, rows in by_task[one.name].items():
            found.written.append(
                _write_references(one, samples[one.name], model, rows, references_dir, reason)
            )
    found.warnings += [
        *lacking,
        *(
            f"{spec.name}: BioChatter used the prompts of its Python code, but the task uses those"
            " of --set"
            for spec in tasks
            if by_task[spec.name] and {"prompt", "system_messages"} & spec.options.keys()
        ),
        *(
            line
            for one in built
            for line in _partly([w for w in found.written if w.task == one.name])
        ),
    ]
    return found


def _latest(
    asked: Sequence[ResultRow], homes: Mapping[str, str]
) -> defaultdict[str, dict[str, dict[str, ResultRow]]]:
    """Return the latest row of each case by task, model and hash.

    `homes` are the tasks by the hash of their cases. Raises DatasetError for results of one case in
    two files.
    """
    by_task: defaultdict[str, dict[str, dict[str, ResultRow]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in asked:
        task = homes[row.md5]
        of_model = by_task[task][row.model]
        if (other := of_model.get(row.md5)) is not None and other.file != row.file:
            raise DatasetError(
                f"{other.file.name} and {row.file.name} both have results of {task} for"
                f" {row.model}, from two different tests of the same cases",
                hint="Import one of them.",
            )
        if other is None or other.date <= row.date:
            of_model[row.md5] = row
    return by_task


def _describe_unasked(rows: Sequence[ResultRow], skipped: Mapping[str, Skipped]) -> list[str]:
    """Return a line for each reason why the cases of rows are not asked."""
    reasons = Counter(skipped[row.md5].reason for row in rows if row.md5 in skipped)
    return [
        f"{count} rows belong to cases that are not asked: {why}" for why, count in reasons.items()
    ]


def _check_tests(files: Sequence[Path]) -> None:
    """Raise DatasetError for results that do not come from scored answers."""
    problems = [
        f"{file}: these scores come from {SCORED_ELSEWHERE[file.stem]}, which no task here produces"
        for file in files
        if file.stem in SCORED_ELSEWHERE
    ]
    if problems:
        raise DatasetError("\n".join(problems), hint="Leave these files out.")


def _check_scoring(task: Task) -> None:
    """Raise DatasetError for a task that is not scored as in BioChatter."""
    if not task.protocol.get(AS_BIOCHATTER):
        raise DatasetError(
            f"{task.name}: this task is not scored as BioChatter scored these answers, so they"
            " cannot be compared",
            hint=(
                f"Give --set {task.name}.{AS_BIOCHATTER}=true and no scorer, which scores cases as"
                " BioChatter does."
            ),
        )


def _check_new(file: Path, models: Iterable[str]) -> None:
    """Raise ReferenceFileError if one of the models has an entry, before any other is written."""
    known = references.load(file) if file.exists() else {}
    for model in models:
        if any(entry.spec == AccuracySpec() for entry in known.get(model, ())):
            raise build_taken_error(file, model, AccuracySpec())


def _entries_of(task: Task, references_dir: Path) -> Path:
    return references_dir / f"{task.reference_file}.yaml"


def _partly(written: Sequence[Written]) -> Iterator[str]:
    """Yield a line about the models of a task that lack results of some cases."""
    some = [one for one in written if one.cases < one.of]
    if some:
        who, whose = (
            ("1 model has", "it") if len(some) == 1 else (f"{len(some)} models have", "them")
        )
        yield (
            f"{some[0].task}: {who} results of only some of the {some[0].of} cases, such as"
            f" {some[0].model} ({some[0].cases}): no scores per sample are kept for {whose}"
        )


def _nothing_matched(files: Sequence[Path], rows: int, lacking: Sequence[str]) -> None:
    named = ", ".join(file.name for file in files)
    if lacking:
        raise DatasetError(
            f"{named}: no row belongs to a case that is asked\n" + "\n".join(lacking),
            hint=(
                "Give what is missing with --set, for this command as for the runs that are to be"
                " compared."
            ),
        )
    raise DatasetError(
        f"{named}: none of the {rows} rows belongs to a case of these files",
        hint=(
            "A case that has changed since has another hash: give the case files from the time of"
            " the results."
        ),
    )


def _write_references(
    task: Task,
    samples: Sequence[Sample],
    model: str,
    rows: Mapping[str, ResultRow],
    references_dir: Path,
    reason: str | None,
) -> Written:
    scale = task.metric.scale
    mine = [
        row for sample in samples if (row := rows.get(sample.metadata["compat_md5"])) is not None
    ]
    value = scale * math.fsum(row.mean for row in mine) / len(mine)
    files = ", ".join(dict.fromkeys(row.file.name for row in mine))
    entry: dict[str, Any] = {
        references.value_key(task.metric.name): round(value, 6),
        "protocol": {**task.protocol, **task.reference_fields},
        "source": f"{RESULTS}, {files}: {len(mine)} of {len(samples)} cases",
        "date": max(row.date for row in mine)[:10] or datetime.now(UTC).date().isoformat(),
    }
    runs: list[array[float]] = []
    if len(mine) == len(samples):
        times = {row.iterations for row in mine if row.each}
        if len(times) == 1 and all(row.each for row in mine):
            runs = [array("d", (row.scores[i] for row in mine)) for i in range(times.pop())]
        entry["runs"] = write_runs(
            task, samples, model, runs or [array("d", (row.mean for row in mine))], references_dir
        )
    write_entry(_entries_of(task, references_dir), model, {}, entry, reason)
    return Written(
        task=task.name, model=model, value=value, cases=len(mine), of=len(samples), runs=len(runs)
    )
