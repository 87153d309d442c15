"""Check what functions outside serve-eval return, so that an error names their file, not ours.

Each function is replaced by one that calls it and checks the result. What it raises passes through,
except for a verdict rule: its answers are already there, so its errors become a RuleError. Types of
`serve_eval.schema`, which is no package below this one, are known by their names.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import reprlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from serve_eval.errors import PlanError, RuleError
from serve_eval.plugins import extensions

Check = tuple[Callable[[Any], bool], str]
"""A test of a value, and what the value must be."""


def is_a(value: object, name: str) -> bool:
    """Return True for an instance of the class of this name in serve_eval.schema."""
    return any(
        one.__name__ == name and one.__module__.startswith("serve_eval.schema")
        for one in type(value).__mro__
    )


def _noun(name: str) -> Check:
    article = "an" if name[0] in "AEIOU" else "a"
    return (lambda value: is_a(value, name)), f"{article} {name} of serve_eval.schema"


def _or_none(check: Check) -> Check:
    return (lambda value: value is None or check[0](value)), f"{check[1]}, or None"


def _of_type(kind: Any) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, TypeError):
            return False
        return True

    return fits


FUNCTION: Check = (callable, "a function")
MAPPING: Check = ((lambda value: isinstance(value, Mapping)), "a mapping")
TEXT: Check = (_of_type(str), "a text")
TEXTS: Check = (_of_type(list[str]), "a list of texts")
TWO_TEXTS: Check = (
    _of_type(tuple[str, str]),
    "two texts, one with full marks and one with score 0",
)
WHOLE: Check = (_of_type(int), "a whole number")
SCORING: Check = (
    (lambda value: value in ("inline", "apart", "loaded")),
    "'inline', 'apart' or 'loaded'",
)
LAUNCHER_FUNCTIONS: Mapping[str, Check] = {
    "commands": (_of_type(list[list[str]]), "a list of commands, each a list of texts"),
    "files": (
        (lambda value: MAPPING[0](value) and all(isinstance(one, str) for one in value.values())),
        "a mapping from paths to texts",
    ),
    "beginning": (_of_type(str | bool | None), "a text, True, False or None"),
    "job_size": _noun("JobSize"),
    "expects": TEXTS,
    "lint": TEXTS,
}
_QUESTIONS: Check = (
    (
        lambda value: (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(is_a(one, "Question") for one in value)
        )
    ),
    "a list of Question",
)
_SCORER: Mapping[str, Check] = {
    "version": WHOLE,
    "score": FUNCTION,
    "answers": FUNCTION,
    "problems": FUNCTION,
    "program": _or_none(FUNCTION),
    "questions": _or_none(FUNCTION),
    "decisive": _or_none(MAPPING),
    "scoring": SCORING,
}
_TASK: Mapping[str, Check] = {
    "name": TEXT,
    "version": WHOLE,
    "reference_file": TEXT,
    "metric": _noun("Metric"),
    "hypothesis": _noun("Hypothesis"),
    "sampling": _noun("SamplingParams"),
    "protocol": MAPPING,
    "extra": MAPPING,
    "load": FUNCTION,
    "score": FUNCTION,
    "answers": FUNCTION,
    "breakdown": FUNCTION,
    "secondary": FUNCTION,
    "aggregation": _noun("Aggregation"),
    "datasets": TEXTS,
    "program": _or_none(FUNCTION),
    "questions": _or_none(FUNCTION),
    "failure_mode": _or_none(FUNCTION),
    "remember": _or_none(FUNCTION),
    "scoring": SCORING,
}
_RETURNED: Mapping[str, Check] = {
    "answers": TWO_TEXTS,
    "problems": TEXTS,
    "program": _or_none(_noun("Program")),
    "questions": _QUESTIONS,
}


def check_returned(
    folder: str, name: str, made: Callable[..., Any], place: str
) -> Callable[..., Any]:
    """Return the function of a file, which checks what it returns.

    It then raises PlanError with the place and the expected type, or RuleError for a verdict rule.
    """
    match folder:
        case "serve_eval.launchers":
            return _check_launch(made, place)
        case "serve_eval.verdicts.rules":
            return _check_judge(name, made, place)
        case _:
            return _check_made(made, place)


def check_function(function: Callable[..., Any], name: str, check: Check, place: str) -> Any:
    """Return a function that raises PlanError if `function` returns another type."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        found = function(*arguments, **options)
        _require(found, check, f"{_line_of(function, place)}: {name}() must return")
        return found

    return call


def _check_made(made: Callable[..., Any], place: str) -> Callable[..., Any]:
    """Check a scorer or a task, and what its functions return."""
    noun, fields = ("Scorer", _SCORER) if made.__name__ == "scorer" else ("Task", _TASK)

    @functools.wraps(made)
    def make(*arguments: Any, **options: Any) -> Any:
        found = made(*arguments, **options)
        where = _line_of(made, place)
        _require(found, _noun(noun), f"{where}: {made.__name__}() must return")
        for field, check in fields.items():
            told = f"{where}: {field} of the {noun} must be"
            _require(getattr(found, field), check, told)
        replaced = {
            field: check_function(getattr(found, field), field, check, place)
            for field, check in _RETURNED.items()
            if getattr(found, field, None) is not None
        }
        if noun == "Task":
            replaced["load"] = _check_load(found.load, place)
        return dataclasses.replace(found, **replaced)

    return make


def _check_load(load: Callable[..., Any], place: str) -> Callable[..., Any]:
    @functools.wraps(load)
    def call(*arguments: Any, **options: Any) -> Any:
        found = load(*arguments, **options)
        where = _line_of(load, place)
        _require(found, _noun("Dataset"), f"{where}: load() must return")
        many = (
            lambda value: isinstance(value, Sequence) and not isinstance(value, str),
            "a list of Sample",
        )
        _require(found.samples, many, f"{where}: samples of the Dataset must be")
        _require(found.total, WHOLE, f"{where}: total of the Dataset must be")
        for i, sample in enumerate(found.samples):
            _require(sample, _noun("Sample"), f"{where}: samples[{i}] must be")
            _check_sample(sample, f"{where}: samples[{i}]")
        return found

    return call


def _check_sample(sample: Any, where: str) -> None:
    if type(sample.id) is not str:
        _require(sample.id, TEXT, f"{where}: id must be")
    if type(sample.target) is not str:
        _require(sample.target, TEXT, f"{where} ({sample.id}): target must be")
    if type(sample.prompt) is not str:
        messages = (
            lambda value: isinstance(value, tuple) and all(is_a(one, "Message") for one in value),
            "a text or a tuple of Message",
        )
        _require(sample.prompt, messages, f"{where} ({sample.id}): prompt must be")
    _require(sample.metadata, MAPPING, f"{where} ({sample.id}): metadata must be")


def _check_launch(made: Callable[..., Any], place: str) -> Callable[..., Any]:
    @functools.wraps(made)
    @asynccontextmanager
    async def launch(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        where, opened = _line_of(made, place), made(*arguments, **options)
        if not hasattr(opened, "__aenter__"):
            if inspect.iscoroutine(opened):
                opened.close()
            raise PlanError(
                f"{where}: launch() must return an asynchronous context manager, not"
                f" {_brief(opened)}",
                hint="Put @asynccontextmanager above it, and `yield Endpoint(...)` into it.",
            )
        async with opened as endpoint:
            _require(endpoint, _noun("Endpoint"), f"{where}: launch() must yield")
            _require(endpoint.base_url, TEXT, f"{where}: base_url of the Endpoint must be")
            yield endpoint

    return launch


def _check_judge(name: str, made: Callable[..., Any], place: str) -> Callable[..., Any]:
    """Check a verdict, and give it the name of its rule, which decides how it is read."""

    @functools.wraps(made)
    def judge(*arguments: Any, **options: Any) -> Any:
        where = _line_of(made, place)
        try:
            found = made(*arguments, **options)
        except (Exception, SystemExit) as error:
            at = extensions.find_external(error) or where
            raise RuleError(f"{at}: judge() raised {type(error).__name__}: {error}") from error
        if not is_a(found, "Verdict"):
            raise RuleError(f"{where}: judge() must return a Verdict, not {_brief(found)}")
        try:
            plain = msgspec.to_builtins(found, enc_hook=_number)
            return dataclasses.replace(msgspec.convert(plain, type(found)), rule=name)
        except (msgspec.ValidationError, TypeError) as error:
            raise RuleError(f"{where}: the Verdict of judge() is not valid: {error}") from error

    return judge


def _number(value: Any) -> Any:
    """Return the plain number of another package's, such as numpy's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{_brief(value)} is not a value of a Verdict")


def _require(value: object, check: Check, told: str) -> None:
    fits, wanted = check
    if not fits(value):
        raise PlanError(f"{told} {wanted}, not {_brief(value)}")


def _brief(value: object) -> str:
    shown = reprlib.repr(value)
    return shown if value is None else f"the {type(value).__name__} {shown}"


def _line_of(function: Callable[..., Any], place: str) -> str:
    """Return FILE:LINE of a function, or the place of its file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return place if code is None else f"{code.co_filename}:{code.co_firstlineno}"
