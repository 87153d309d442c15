"""Check the entries of a reference file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import msgspec

from serve_eval.plugins.registry import nearest
from serve_eval.schema import Metric, Reference, ReferenceRuns
from serve_eval.verdicts.references.keys import METRICS, SPEC_KEYS


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
