"""Read reference files, and find the folder of those that are shipped with serve-eval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.schema import AccuracySpec, Reference, ReferenceRuns
from serve_eval.verdicts.references.checks import entry_problems
from serve_eval.verdicts.references.keys import METRICS, SPEC_KEYS, spec_text

_FLOATS = frozenset({"alpha", "beta", "sigma", "threshold"})

Entries = Mapping[str, Sequence[Reference]]
"""The entries of a reference file by model, in file order."""


def find_shipped_dir() -> Path:
    """Return the folder of the shipped reference files.

    It is inside the package in a wheel, and next to the package in a checkout.
    """
    package = Path(__file__).parents[2]
    inside = package / "references"
    return inside if inside.is_dir() else package.parent / "references"


def list_files(directories: Sequence[Path]) -> list[Path]:
    """Return every reference file, in the order in which `find` searches.

    Raises ReferenceFileError for a missing directory.
    """
    for directory in directories:
        if not directory.is_dir():
            raise ReferenceFileError(
                f"{directory}: no such directory", hint="Pass a folder with <task>.yaml files."
            )
    return [file for directory in directories for file in sorted(directory.glob("*.yaml"))]


def load(file: Path) -> Entries:
    """Return the entries of a file by model, in file order.

    Raises ReferenceFileError that lists every problem of the file.
    """
    return parse(yaml_source.read_text(file, ReferenceFileError), str(file))


@lru_cache(maxsize=64)
def parse(text: str, name: str) -> Entries:
    """Return the entries of a text by model; `name` is its file's name.

    The result is cached: a suite reads the same few files for every run, and YAML takes 0.1 s for
    the largest.
    """
    return _references(yaml_source.parse(text, name, ReferenceFileError), Path(name).stem)


def raise_all(problems: list[str]) -> None:
    """Raise ReferenceFileError that lists the problems, if there are any."""
    if problems:
        hint = "Correct the file, then run `serve-eval references check FILE`."
        raise ReferenceFileError("\n".join(problems), hint=hint)


def models(document: yaml_source.YamlDocument) -> dict[Any, Any]:
    """Return the content of a file, a mapping. Raises ReferenceFileError for anything else."""
    if not isinstance(document.value, dict):
        where = f"{document.name}:{document.line()}"
        raise ReferenceFileError(
            f"{where}: must map model names to entries", hint="A file without entries holds {}."
        )
    return document.value


def _references(document: yaml_source.YamlDocument, task: str) -> dict[str, list[Reference]]:
    problems: list[str] = []
    found: dict[str, list[Reference]] = {}
    for model, entries in models(document).items():
        where = f"{document.name}:{document.line(model)}: {model}"
        if not isinstance(model, str):
            problems.append(f"{where}: a model's name must be text; put it in quotes")
        elif not isinstance(entries, list):
            problems.append(f"{where}: must be a list of entries, each starting with '- '")
        else:
            found[model] = _entries(document, task, model, entries, problems)
    raise_all(problems)
    return found


def _entries(
    document: yaml_source.YamlDocument,
    task: str,
    model: str,
    entries: list[Any],
    problems: list[str],
) -> list[Reference]:
    good: list[Reference] = []
    first_line: dict[AccuracySpec, int] = {}
    for index, entry in enumerate(entries):
        troubles = list(entry_problems(entry))
        problems += [
            f"{document.name}:{document.line(model, index, key)}: {model}: {text}"
            for key, text in troubles
        ]
        if troubles:
            continue
        reference = _reference(entry, task, model, document.name, document.line(model, index))
        if reference.spec in first_line:
            problems.append(
                f"{document.name}:{reference.line}: {model}: this entry can never match: line"
                f" {first_line[reference.spec]} has the same spec ({spec_text(reference.spec)}) and"
                " comes first"
            )
        first_line.setdefault(reference.spec, reference.line)
        good.append(reference)
    return good


def _reference(entry: Mapping[str, Any], task: str, model: str, file: str, line: int) -> Reference:
    metric = next(key for key in METRICS if key in entry)
    spec = AccuracySpec(**{key: entry[key] for key in SPEC_KEYS if key in entry})
    rest: dict[str, Any] = {k: v for k, v in entry.items() if k not in SPEC_KEYS and k != metric}
    rest |= {k: float(v) for k, v in rest.items() if k in _FLOATS}
    if "runs" in rest:
        rest["runs"] = msgspec.convert(rest["runs"], ReferenceRuns)
    rest["measured"] = tuple(float(value) for value in rest.get("measured", ()))
    rest["replaced"] = tuple(rest.get("replaced", ()))
    return Reference(
        task=task,
        model=model,
        spec=spec,
        value=float(entry[metric]),
        metric=metric,
        file=file,
        line=line,
        **rest,
    )
