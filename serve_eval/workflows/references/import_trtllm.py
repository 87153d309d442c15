"""Import the reference files of TensorRT-LLM's accuracy suite: their figures and provenance.

The suite ignores unknown keys and entries that can never match, and keeps no history. serve-eval
rejects the first two and keeps rows that only an older file has. Anything dropped, moved or
remarkable is reported as an oddity but never corrected: the figures stay those of the source.
Comments and notes are not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve_eval.errors import ReferenceFileError
from serve_eval.frozen import freeze
from serve_eval.whole_file import write_named_file
from serve_eval.workflows.references.entries import make_folder
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
    before = _write(texts, target)
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


def _write(texts: Mapping[str, str], target: Path) -> dict[str, str]:
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
