"""Find the registered value of a run, or the reason for its absence, and check reference files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import ReferenceFileError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import AccuracySpec, Reference
from serve_eval.schema.task import file_stem
from serve_eval.verdicts.references.acceptance_length import (
    ACCEPTANCE_LENGTH,
    load_acceptance_length,
)
from serve_eval.verdicts.references.checks import RANGES, range_problems
from serve_eval.verdicts.references.keys import spec_text
from serve_eval.verdicts.references.reference_file import Entries, list_files, load


def find(
    name: str, model: str, spec: AccuracySpec, directories: Sequence[Path]
) -> Reference | None:
    """Return the first entry of `<name>.yaml` for this model and spec, or None.

    All five spec values must equal those of `spec` (case-sensitive). Directories are searched in
    order, so a user's own entries come before the shipped ones. Raises ReferenceFileError for a
    malformed file or a missing directory.
    """
    for entries in _all_entries(name, directories):
        for reference in entries.get(model, ()):
            if reference.spec == spec:
                return reference
    return None


def explain_missing(name: str, model: str, spec: AccuracySpec, directories: Sequence[Path]) -> str:
    """Return why `find` found nothing, and what exists instead. Raises as `find` does."""
    files = _all_entries(name, directories)
    if not files:
        return f"there is no reference file {name}.yaml in {', '.join(map(str, directories))}"
    models = list(dict.fromkeys(model for entries in files for model in entries))
    if model not in models:
        more = f" To list all models: serve-eval references show {name}."
        return f"{name}.yaml has no model {model!r}.{nearest(model, models)}{more}"
    wanted = spec_text(spec)
    specs = list(
        dict.fromkeys(spec_text(r.spec) for entries in files for r in entries.get(model, ()))
    )
    same_but_case = [text for text in specs if text.casefold() == wanted.casefold()]
    hint = (
        f" Did you mean {same_but_case[0]!r}?"
        if same_but_case
        else f" Registered: {'; '.join(specs) or 'no entry'}."
    )
    return f"{name}.yaml has the model {model!r}, but not with the spec {wanted!r}.{hint}"


def check(path: Path) -> list[str]:
    """Return every problem of a file, or of all files of a directory.

    Raises ReferenceFileError if there is no file.
    """
    files = [path] if path.is_file() else list_files([path])
    if not files:
        raise ReferenceFileError(
            f"{path}: no reference file", hint="Reference files are named <task>.yaml."
        )
    problems = []
    for file in files:
        try:
            if file.stem == ACCEPTANCE_LENGTH:
                load_acceptance_length(file)
            else:
                problems += _check_ranges(file)
        except ReferenceFileError as error:
            problems += str(error).splitlines()
    return problems


def _check_ranges(file: Path) -> list[str]:
    """Return the problems of values that their metric cannot reach.

    The value of a task of lm-evaluation-harness may have any range, and so may one that was
    registered from runs: only a run knows the metric.
    """
    entries = [entry for found in load(file).values() for entry in found]
    if file.stem.startswith(file_stem("lm_eval:")):
        return []
    return [
        f"{entry.file}:{entry.line}: {entry.model}: {problem}"
        for entry in entries
        if entry.runs is None
        for problem in range_problems(entry, RANGES[entry.metric])
    ]


def _all_entries(name: str, directories: Sequence[Path]) -> list[Entries]:
    return [load(file) for file in list_files(directories) if file.stem == name]
