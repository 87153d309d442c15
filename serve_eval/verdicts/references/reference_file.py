"""Read and check reference files, and find the folder of those that are shipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import AccuracySpec, Metric, Reference, ReferenceRuns

SPEC_KEYS = ("dtype", "quant_algo", "kv_cache_quant_algo", "spec_dec_algo", "extra_acc_spec")
IMPORTED = "imported: "
"""Beginning of the source of a reference that was imported from results of another tool."""
METRICS = ("accuracy", "wer", "perplexity", "rouge1", "pass_at_1")


def value_key(metric: str) -> str:
    """Return the key of a metric's value: its own name, or `accuracy` for any other metric."""
    return metric if metric in METRICS else "accuracy"


def spec_text(spec: AccuracySpec) -> str:
    """Return the values of a spec that differ from the default, or "default".

    For example "quant_algo=FP8 kv_cache_quant_algo=FP8".
    """
    default = AccuracySpec()
    values = {key: getattr(spec, key) for key in SPEC_KEYS}
    return (
        " ".join(
            f"{key}={value}" for key, value in values.items() if value != getattr(default, key)
        )
        or "default"
    )


def entry_problems(entry: object) -> Iterator[tuple[str, str]]:
    """Yield every problem of an entry: the key that has it, and a description."""
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


def number_problem(value: object) -> str:
    """Return why a value is not a finite number; empty if it is one. A bool is not a number."""
    try:
        finite = isinstance(value, str | int | float) and math.isfinite(float(value))
    except (ValueError, OverflowError):
        finite = False
    if finite and isinstance(value, str):
        return f"is text, not a number: write {float(value)!r} instead of {value!r}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if finite and number else f"must be a finite number, not {value!r}"


RANGES = {
    "accuracy": Metric(),
    "rouge1": Metric(name="rouge1"),
    "pass_at_1": Metric(name="pass_at_1"),
    "wer": Metric(name="wer", higher_is_better=False, hi=None),
    "perplexity": Metric(name="perplexity", higher_is_better=False, lo=1.0, hi=None, scale=1.0),
}
"""The metric that each key of a value means, where the task of a file is not known."""


def range_problems(found: Reference, metric: Metric) -> Iterator[str]:
    """Yield what is wrong with the value or the threshold of an entry: no value can reach it."""
    low, high = (None if end is None else metric.scale * end for end in (metric.lo, metric.hi))
    for name, value in ((found.metric, found.value), ("threshold", found.threshold)):
        if value is None:
            continue
        if name == "threshold" and high == 100.0 and 0 < value < 1:
            yield f"threshold must be in points from 0 to 100, not the fraction {value:g}"
            continue
        over = high is not None and value > high
        if over or (low is not None and value < low):
            ends = ((low, "more"), (high, "less"))
            known = [f"{end:g} or {word}" for end, word in ends if end is not None]
            yield f"{name} must be {' and '.join(known)}, not {value:g}: correct the number"


def _numbers(accept: Callable[[float], bool], wish: str) -> Callable[[object], str]:
    """Return a check that passes numbers for which `accept` is true."""

    def problem(value: Any) -> str:
        return number_problem(value) or ("" if accept(value) else f"must be {wish}, not {value!r}")

    return problem


def _instance(kind: type, wish: str, *, null: bool = False) -> Callable[[object], str]:
    """Return a check that passes values of one type, and None if `null`."""

    def problem(value: object) -> str:
        right = isinstance(value, kind) or (null and value is None)
        return "" if right else f"must be {wish}, not {value!r}"

    return problem


_TEXT = _instance(str, "text (put it in quotes)")
_TEXT_OR_NULL = _instance(str, "text (put it in quotes) or null", null=True)
_FLAG = _instance(bool, "true or false")
_RATE = _numbers(lambda value: 0 < value < 1, "between 0 and 1, both excluded")


def _count(value: object) -> str:
    return (
        ""
        if type(value) is int and value >= 1
        else f"must be a whole number of at least 1, not {value!r}"
    )


def _runs(value: object) -> str:
    known = [field.name for field in fields(ReferenceRuns)]
    if isinstance(value, Mapping) and (unknown := [key for key in value if key not in known]):
        return f"has an unknown key {unknown[0]!r}.{nearest(str(unknown[0]), known)}"
    try:
        runs = msgspec.convert(value, ReferenceRuns)
    except msgspec.ValidationError as error:
        return f"does not have the form that `references register` writes: {error}"
    return "" if runs.values and runs.n >= 1 else "has no value"


def _values(value: object) -> str:
    numbers = isinstance(value, list) and value and not any(number_problem(one) for one in value)
    return "" if numbers else "must be a list of the values of the source's runs"


def _replace(value: object) -> str:
    entries = isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    return "" if entries else "must be a list of the entries that this one replaces"


_CHECKS: dict[str, Callable[[object], str]] = {
    "dtype": _TEXT,
    **dict.fromkeys(SPEC_KEYS[1:], _TEXT_OR_NULL),
    **dict.fromkeys(METRICS, number_problem),
    "accuracy": _numbers(
        lambda value: not 0 < value < 1, "in points from 0 to 100, not a fraction of 1"
    ),
    "alpha": _RATE,
    "beta": _RATE,
    "sigma": _numbers(lambda value: value >= 0, "at least 0"),
    "num_samples": _count,
    "higher_is_better": _FLAG,
    "threshold": number_problem,
    "reference_note": _TEXT,
    "source": _TEXT,
    "date": _TEXT,
    "protocol": _instance(dict, "a mapping"),
    "old": _FLAG,
    "measured": _values,
    "runs": _runs,
    "replaced": _replace,
}


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
