"""Reference files: the registered values that runs are compared with.

A file `<task>.yaml` maps a model name to a list of entries. An entry has up to five spec keys, which must equal the
run's accuracy specification, one value under the metric's name, and optionally overrides and provenance. The first
matching entry counts. Nothing is ignored: an unknown key or an entry that can never match is an error.
`acceptance_length.yaml` has a shape of its own: a test's name with its reference and its least acceptable length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import AccuracySpec, Reference, ReferenceRuns

SPEC_KEYS = ("dtype", "quant_algo", "kv_cache_quant_algo", "spec_dec_algo", "extra_acc_spec")
METRICS = ("accuracy", "wer", "perplexity", "rouge1", "pass_at_1")
ACCEPTANCE_LENGTH = "acceptance_length"
_FLOATS = frozenset({"alpha", "beta", "sigma", "threshold"})

Entries = Mapping[str, Sequence[Reference]]
"""The entries of a reference file by model, in file order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLength:
    """Tokens per step of speculative decoding: the reference `ref_al`, and the least that passes, `min_al`."""

    ref_al: float
    min_al: float


def value_key(metric: str) -> str:
    """The key under which the value of a metric is written: its own, or `accuracy`, which stands for any."""
    return metric if metric in METRICS else "accuracy"


# ----------------------------------------------------------------------------------------- where the files are


def shipped_dir() -> Path:
    """The reference files that come with serve-eval: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "references"
    return inside if inside.is_dir() else package.parent / "references"


def known_files(directories: Sequence[Path]) -> list[Path]:
    """Every reference file, in the order in which `find` looks. Raises ReferenceFileError for a missing directory."""
    for directory in directories:
        if not directory.is_dir():
            raise ReferenceFileError(f"{directory}: no such directory", hint="Name a folder with <task>.yaml files.")
    return [file for directory in directories for file in sorted(directory.glob("*.yaml"))]


# --------------------------------------------------------------------------------------------------- look-up


def find(name: str, model: str, spec: AccuracySpec, directories: Sequence[Path]) -> Reference | None:
    """The first entry of `<name>.yaml` for this model whose five spec values equal `spec` (case-sensitive).

    Directories are searched in order, so a user's own entries come before the shipped ones. Raises ReferenceFileError
    for a malformed file or a missing directory.
    """
    for entries in _all_entries(name, directories):
        for reference in entries.get(model, ()):
            if reference.spec == spec:
                return reference
    return None


def explain_missing(name: str, model: str, spec: AccuracySpec, directories: Sequence[Path]) -> str:
    """Why `find` gave nothing, and what there is instead. Raises as `find` does."""
    files = _all_entries(name, directories)
    if not files:
        return f"there is no reference file {name}.yaml in {', '.join(map(str, directories))}"
    models = list(dict.fromkeys(model for entries in files for model in entries))
    if model not in models:
        more = f" All of them: serve-eval references show {name}."
        return f"{name}.yaml has no model {model!r}.{nearest(model, models)}{more}"
    wanted = spec_text(spec)
    specs = list(dict.fromkeys(spec_text(r.spec) for entries in files for r in entries.get(model, ())))
    same_but_case = [text for text in specs if text.casefold() == wanted.casefold()]
    hint = f" Did you mean {same_but_case[0]!r}?" if same_but_case else f" It has: {'; '.join(specs) or 'no entry'}."
    return f"{name}.yaml has the model {model!r}, but not with the spec {wanted!r}.{hint}"


def spec_text(spec: AccuracySpec) -> str:
    """The values of a spec that are not the default, such as "quant_algo=FP8 kv_cache_quant_algo=FP8", or "default"."""
    default = AccuracySpec()
    values = {key: getattr(spec, key) for key in SPEC_KEYS}
    return " ".join(f"{key}={value}" for key, value in values.items() if value != getattr(default, key)) or "default"


def _all_entries(name: str, directories: Sequence[Path]) -> list[Entries]:
    return [load(file) for file in known_files(directories) if file.stem == name]


# --------------------------------------------------------------------------------------------------- reading


def load(file: Path) -> Entries:
    """The entries of a file by model, in file order. Raises ReferenceFileError that lists every problem of the file."""
    return parse(yaml_source.read_text(file, ReferenceFileError), str(file))


@lru_cache(maxsize=64)
def parse(text: str, name: str) -> Entries:
    """As `load`, for a text; `name` stands for the file. The same text is parsed once: a suite looks into the same few
    files for every run, and YAML takes a tenth of a second for the largest."""
    return _references(yaml_source.parse(text, name, ReferenceFileError), Path(name).stem)


def load_acceptance_length(file: Path) -> dict[str, AcceptanceLength]:
    """The content of `acceptance_length.yaml` by test. Raises ReferenceFileError that lists every problem."""
    document = yaml_source.read(file, ReferenceFileError)
    problems: list[str] = []
    found = {}
    for test, entry in _models(document).items():
        troubles = list(_length_problems(entry))
        problems += [f"{document.name}:{document.line(test, key)}: {test}: {text}" for key, text in troubles]
        if not troubles:
            found[test] = AcceptanceLength(ref_al=float(entry["ref_al"]), min_al=float(entry["min_al"]))
    _raise_all(problems)
    return found


def find_acceptance_length(test: str, directories: Sequence[Path]) -> AcceptanceLength:
    """The first entry of this name. Raises ReferenceFileError when no `acceptance_length.yaml` has it."""
    known: list[str] = []
    for file in known_files(directories):
        if file.stem == ACCEPTANCE_LENGTH:
            entries = load_acceptance_length(file)
            if test in entries:
                return entries[test]
            known += entries
    hint = f"Put NAME: {{ref_al: ..., min_al: ...}} into DIR/{ACCEPTANCE_LENGTH}.yaml and name --references-dir DIR."
    raise ReferenceFileError(f"{ACCEPTANCE_LENGTH}.yaml has no entry {test!r}.{nearest(test, known)}", hint=hint)


def check(path: Path) -> list[str]:
    """Every problem of a file, or of all files of a directory. Raises ReferenceFileError when there is no file."""
    files = [path] if path.is_file() else known_files([path])
    if not files:
        raise ReferenceFileError(f"{path}: no reference file", hint="Reference files are named <task>.yaml.")
    problems = []
    for file in files:
        try:
            load_acceptance_length(file) if file.stem == ACCEPTANCE_LENGTH else load(file)
        except ReferenceFileError as error:
            problems += str(error).splitlines()
    return problems


def _raise_all(problems: list[str]) -> None:
    if problems:
        hint = "Correct the file; `serve-eval references check FILE` tells when it is right."
        raise ReferenceFileError("\n".join(problems), hint=hint)


def _models(document: yaml_source.Document) -> dict[Any, Any]:
    if not isinstance(document.value, dict):
        where = f"{document.name}:{document.line()}"
        raise ReferenceFileError(f"{where}: must map model names to entries", hint="A file without entries holds {}.")
    return document.value


def _references(document: yaml_source.Document, task: str) -> dict[str, list[Reference]]:
    problems: list[str] = []
    found: dict[str, list[Reference]] = {}
    for model, entries in _models(document).items():
        where = f"{document.name}:{document.line(model)}: {model}"
        if not isinstance(model, str):
            problems.append(f"{where}: a model's name must be text; put it in quotes")
        elif not isinstance(entries, list):
            problems.append(f"{where}: must be a list of entries, each starting with '- '")
        else:
            found[model] = _entries(document, task, model, entries, problems)
    _raise_all(problems)
    return found


def _entries(
    document: yaml_source.Document, task: str, model: str, entries: list[Any], problems: list[str]
) -> list[Reference]:
    good: list[Reference] = []
    first_line: dict[AccuracySpec, int] = {}
    for index, entry in enumerate(entries):
        troubles = list(_entry_problems(entry))
        problems += [f"{document.name}:{document.line(model, index, key)}: {model}: {text}" for key, text in troubles]
        if troubles:
            continue
        reference = _reference(entry, task, model, document.name, document.line(model, index))
        if reference.spec in first_line:
            problems.append(
                f"{document.name}:{reference.line}: {model}: this entry can never match: line "
                f"{first_line[reference.spec]} has the same spec ({spec_text(reference.spec)}) and comes first"
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
    rest["replaced"] = tuple(rest.get("replaced", ()))
    return Reference(
        task=task, model=model, spec=spec, value=float(entry[metric]), metric=metric, file=file, line=line, **rest
    )


# --------------------------------------------------------------------------------------------------- checking


def _entry_problems(entry: object) -> Iterator[tuple[str, str]]:
    if not isinstance(entry, dict):
        yield "", "an entry must be a mapping such as {quant_algo: FP8, accuracy: 87.1}"
        return
    for key, value in entry.items():
        if key not in _CHECKS:
            yield key, f"unknown key {key!r}.{nearest(str(key), _CHECKS)}"
        elif problem := _CHECKS[key](value):
            yield key, f"{key} {problem}"
    metrics = [key for key in METRICS if key in entry]
    if not metrics:
        yield "", f"the entry has no value; give one of {', '.join(METRICS)}"
    if len(metrics) > 1:
        yield metrics[1], f"the entry has {len(metrics)} values ({', '.join(metrics)}); keep one"


def _length_problems(entry: object) -> Iterator[tuple[str, str]]:
    keys = ("ref_al", "min_al")
    if not isinstance(entry, dict):
        yield "", "must be a mapping with ref_al and min_al"
        return
    yield from ((key, f"unknown key {key!r}.{nearest(str(key), keys)}") for key in entry if key not in keys)
    troubles = {key: _number(entry[key]) if key in entry else "is missing" for key in keys}
    yield from ((key, f"{key} {text}") for key, text in troubles.items() if text)
    if not any(troubles.values()) and entry["min_al"] > entry["ref_al"]:
        yield "min_al", f"min_al {entry['min_al']} is above ref_al {entry['ref_al']}"


def _number(value: object) -> str:
    """What keeps a value from being a finite number; empty when it is one. A bool is none."""
    try:
        finite = isinstance(value, str | int | float) and math.isfinite(float(value))
    except (ValueError, OverflowError):
        finite = False
    if finite and isinstance(value, str):
        return f"is text, not a number: write {float(value)!r} instead of {value!r}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if finite and number else f"must be a finite number, not {value!r}"


def _numbers(accept: Callable[[float], bool], wish: str) -> Callable[[object], str]:
    """A check for numbers that `accept` takes."""

    def problem(value: Any) -> str:
        return _number(value) or ("" if accept(value) else f"must be {wish}, not {value!r}")

    return problem


def _instance(kind: type, wish: str, *, null: bool = False) -> Callable[[object], str]:
    """A check for values of one type, and None where `null`."""

    def problem(value: object) -> str:
        right = isinstance(value, kind) or (null and value is None)
        return "" if right else f"must be {wish}, not {value!r}"

    return problem


_TEXT = _instance(str, "text (put it in quotes)")
_TEXT_OR_NULL = _instance(str, "text (put it in quotes) or null", null=True)
_FLAG = _instance(bool, "true or false")
_RATE = _numbers(lambda value: 0 < value < 1, "between 0 and 1, both excluded")


def _count(value: object) -> str:
    return "" if type(value) is int and value >= 1 else f"must be a whole number of at least 1, not {value!r}"


def _runs(value: object) -> str:
    known = [field.name for field in fields(ReferenceRuns)]
    if isinstance(value, Mapping) and (unknown := [key for key in value if key not in known]):
        return f"has an unknown key {unknown[0]!r}.{nearest(str(unknown[0]), known)}"
    try:
        runs = msgspec.convert(value, ReferenceRuns)
    except msgspec.ValidationError as error:
        return f"is not what `references register` writes: {error}"
    return "" if runs.values and runs.n >= 1 else "has no value"


def _replaced(value: object) -> str:
    entries = isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    return "" if entries else "must be a list of the entries that stood here before"


_CHECKS: dict[str, Callable[[object], str]] = {
    "dtype": _TEXT,
    **dict.fromkeys(SPEC_KEYS[1:], _TEXT_OR_NULL),
    **dict.fromkeys(METRICS, _number),
    "accuracy": _numbers(lambda value: not 0 < value < 1, "in points from 0 to 100, not a share of 1"),
    "alpha": _RATE,
    "beta": _RATE,
    "sigma": _numbers(lambda value: value >= 0, "at least 0"),
    "num_samples": _count,
    "higher_is_better": _FLAG,
    "threshold": _number,
    "reference_note": _TEXT,
    "source": _TEXT,
    "date": _TEXT,
    "protocol": _instance(dict, "a mapping"),
    "old": _FLAG,
    "runs": _runs,
    "replaced": _replaced,
}
