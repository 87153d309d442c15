"""Recognise the files of other tools by their content, and read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.workflows.references.imports import evaluators, inspect_logs, lm_eval
from serve_eval.workflows.references.imports.files import FoundResult, parse_json, read_json

TOOLS = "lm-eval, inspect, NeMo Evaluator, sgl-eval, srt-slurm and evalscope"
MOST_FILES = 10_000
"""Maximum number of files below a folder."""
_DOCUMENTS = (".json", ".yml", ".eval", ".jsonl")
"""Ends of the names of files that tools write. *.yaml are TensorRT-LLM's references."""
_FIRST = 64 << 20


def is_results(source: Path) -> bool:
    """Return True for a file, and for a folder below which files may be results of a tool."""
    return source.is_file() or next(_list_files(source), None) is not None


def read_source(source: Path) -> tuple[list[FoundResult], list[str]]:
    """Return the results of a file, or of all files below a folder, and what cannot be read.

    Raises ReferenceFileError for a file that no tool wrote, and for a folder without any that can
    be read.
    """
    if not source.is_dir():
        if not source.exists():
            raise ReferenceFileError(f"{source}: no such file or folder")
        found = list(_read_file(source))
        return found, []
    results: list[FoundResult] = []
    problems: list[str] = []
    read: set[Path] = set()
    for file in _list_files(source):
        try:
            results += [one for one in _read_file(file) if one.file not in read]
        except ReferenceFileError as error:
            if not isinstance(error, _UnknownFormatError):
                problems.append(str(error))
        read |= {one.file for one in results}
    if not results:
        told = "".join(f"\n{line}" for line in problems)
        raise ReferenceFileError(
            f"{source}: holds no results of {TOOLS}{told}",
            hint="Name a file of results, or the references folder of a checkout of TensorRT-LLM.",
        )
    return results, problems


class _UnknownFormatError(ReferenceFileError):
    """No tool that is known here wrote the file."""


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that may be results, those of whole runs before answers."""
    found = []
    for number, file in enumerate(folder.rglob("*"), 1):
        if number > MOST_FILES:
            raise ReferenceFileError(
                f"{folder}: has more than {MOST_FILES:,} files", hint="Name the folder of one run."
            )
        if file.suffix in _DOCUMENTS and file.is_file() and not lm_eval.find_results_of(file):
            found.append(file)
    yield from sorted(found, key=lambda file: (_DOCUMENTS.index(file.suffix), file))


def _read_file(file: Path) -> Iterator[FoundResult]:
    try:
        with file.open("rb") as source:
            first = source.readline(_FIRST)
            rest = source.read(1)
    except OSError as error:
        raise ReferenceFileError(f"{file}: cannot be read: {error.strerror}") from error
    if first.startswith(b"PK"):
        yield from inspect_logs.read_archive(file)
    elif file.suffix in (".yml", ".yaml"):
        content = yaml_source.read(file, ReferenceFileError).value
        if not isinstance(content, dict) or not evaluators.is_results(content):
            raise _refuse(file)
        yield from evaluators.read_results(file, content)
    elif (line := _read_line(first)) is not None and (rest or file.suffix == ".jsonl"):
        yield from _read_answers(file, line)
    else:
        content = read_json(file)
        if not isinstance(content, dict):
            raise _refuse(file)
        yield from _read_document(file, content)


def _read_line(first: bytes) -> dict[str, Any] | None:
    """Return the object in the first line of a file; None if the line is no whole object."""
    try:
        found = parse_json(first, "")
    except ReferenceFileError:
        return None
    return found if isinstance(found, dict) else None


def _read_answers(file: Path, line: dict[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of a file with an answer per line."""
    if lm_eval.is_sample(line):
        results = lm_eval.find_results_of(file)
        if results is None:
            yield from lm_eval.read_samples(file)
        else:
            task = file.name.removeprefix("samples_")
            every = _read_file(results)
            yield from (one for one in every if task.startswith(f"{one.task}_20"))
    elif evaluators.is_review(line):
        raise _UnknownFormatError(
            f"{file}: has answers of evalscope without their report",
            hint="Name reports/MODEL/TASK.json of the run: its reviews are read with it.",
        )
    else:
        raise _refuse(file)


def _read_document(file: Path, content: dict[str, Any]) -> Iterator[FoundResult]:
    """Yield the results of a JSON document."""
    if inspect_logs.is_log(content):
        yield from inspect_logs.read_log(file, content)
    elif evaluators.is_report(content):
        yield from evaluators.read_report(file, content)
    elif evaluators.is_results(content):
        yield from evaluators.read_results(file, content)
    elif evaluators.is_bundle(content):
        yield from evaluators.read_bundle(file, content)
    elif evaluators.is_metrics(content):
        yield from evaluators.read_metrics(file, content)
    elif evaluators.is_gsm8k(content):
        yield from evaluators.read_gsm8k(file, content)
    elif evaluators.is_sglang(file, content):
        yield from evaluators.read_sglang(file, content)
    elif lm_eval.is_results(content):
        yield from lm_eval.read_results(file, content)
    else:
        raise _refuse(file)


def _refuse(file: Path) -> ReferenceFileError:
    return _UnknownFormatError(
        f"{file}: is no file of results of {TOOLS}",
        hint="Name a file that one of them wrote, or the references folder of a checkout of"
        " TensorRT-LLM.",
    )
