"""Check what functions outside serve-eval return, so that an error names their file.

Each function is replaced by one that calls it and checks the result. What it returns before
anything is asked is a PlanError. What it returns of answers is an ExternalCodeError, since the
answers are kept. What it raises passes through, with its own line, unless only the verdict would
show it: that of a rule, and of the sums that a rule compares.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeGuard

import msgspec

from serve_eval.errors import ExternalCodeError, PlanError, ServeEvalError
from serve_eval.plugins import _wanted, closest, extensions
from serve_eval.plugins._wanted import (
    Check,
    brief,
    check_score,
    is_a,
    noun,
    require,
    require_fields,
)

OUTCOMES = ("PASS", "FAIL", "INCONCLUSIVE", "ERROR")
"""The outcomes that a verdict rule may return; the others are of tasks that no rule judges."""
_ONCE = tuple(f"generator didn't {end}" for end in ("yield", "stop", "stop after athrow()"))
"""The errors of Python for an @asynccontextmanager that yields nothing, or twice."""


def check_returned(
    folder: str, name: str, made: Callable[..., Any], place: str
) -> Callable[..., Any]:
    """Return the function of a file, which checks what it returns, and what its functions do.

    They raise PlanError or ExternalCodeError with the place, the result and the wanted type.
    """
    match folder:
        case "serve_eval.launchers":
            return _check_launch(made, place)
        case "serve_eval.verdicts.rules":
            return _check_judge(name, made, place)
        case "serve_eval.scorers":
            return _check_maker(made, place, "Scorer", _wanted.SCORER)
        case _:
            return _check_maker(made, place, "Task", _wanted.TASK)


def check_function(
    function: Callable[..., Any],
    name: str,
    check: Check,
    place: str,
    error: type[ServeEvalError] = PlanError,
) -> Callable[..., Any]:
    """Return a function that raises an error if `function` returns another type."""
    where = _line_of(function, place)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with explain_fields(error):
            found = function(*arguments, **options)
        require(found, check, f"{where}: {name}() must return", error)
        if is_a(found, "Program") or is_a(found, "JobSize"):
            require_fields(found, f"{where}: the {type(found).__name__} of {name}()", error)
        if check is _wanted.NUMBER:
            return float(found)
        if check is _wanted.NUMBERS:
            return {key: float(value) for key, value in found.items()}
        return found

    return call


# ------------------------------------------------------------------------------------------------
# scorers and tasks


def _check_maker(
    made: Callable[..., Any], place: str, kind: str, fields: Mapping[str, Check]
) -> Callable[..., Any]:
    """Check a scorer or a task, and what its functions return."""

    @functools.wraps(made)
    def make(*arguments: Any, **options: Any) -> Any:
        where = _line_of(made, place)
        with explain_fields():
            found = made(*arguments, **options)
        require(found, noun(kind), f"{where}: {made.__name__}() must return")
        for field, check in fields.items():
            require(getattr(found, field), check, f"{where}: {field} of the {kind} must be")
        replaced = {
            field: check_function(function, field, check, place, error)
            for error, checks in ((PlanError, _wanted.BEFORE), (ExternalCodeError, _wanted.AFTER))
            for field, check in checks.items()
            if _is_checked(function := getattr(found, field, None), made)
        }
        ends = 0.0, 1.0
        if kind == "Task":
            for field in _wanted.PLAIN:
                require_fields(getattr(found, field), f"{where}: {field} of the Task")
            ends = found.metric.lo, found.metric.hi
            replaced["load"] = _check_load(found.load, place, chat=found.chat)
            replaced["aggregation"] = _check_aggregation(found.aggregation, place, made)
        replaced["score"] = _check_scoring(found.score, place, *ends)
        return dataclasses.replace(found, **replaced)

    return make


def _is_checked(function: Any, made: Callable[..., Any]) -> TypeGuard[Callable[..., Any]]:
    """Return True for a function that is not serve-eval's own, such as a default.

    If `made` is ours, its functions are checked too, but no defaults of our nouns.
    """
    ours = "serve_eval.schema" if made.__module__.startswith("serve_eval.") else "serve_eval"
    module = str(getattr(function, "__module__", ""))
    return function is not None and not f"{module}.".startswith(f"{ours}.")


def _check_scoring(
    score: Callable[..., Any], place: str, lo: float | None, hi: float | None
) -> Callable[..., Any]:
    told = f"{_line_of(score, place)}: score()"

    @functools.wraps(score)
    def call(*arguments: Any, **options: Any) -> Any:
        return check_score(score(*arguments, **options), told, lo, hi)

    return call


def _check_load(load: Callable[..., Any], place: str, *, chat: bool) -> Callable[..., Any]:
    where = _line_of(load, place)

    @functools.wraps(load)
    def call(*arguments: Any, **options: Any) -> Any:
        with explain_fields():
            found = load(*arguments, **options)
        require(found, noun("Dataset"), f"{where}: load() must return")
        for field, check in _wanted.DATASET.items():
            require(getattr(found, field), check, f"{where}: {field} of the Dataset must be")
        for i, sample in enumerate(found.samples):
            require(sample, noun("Sample"), f"{where}: samples[{i}] must be")
            for field, check in _wanted.SAMPLE.items():
                named = f" ({sample.id})" if field != "id" else ""
                told = f"{where}: samples[{i}]{named}: {field} must be"
                require(getattr(sample, field), check, told)
            _check_chat(sample, f"{where}: samples[{i}] ({sample.id})", chat=chat)
        return found

    return call


def _check_chat(sample: Any, told: str, *, chat: bool) -> None:
    """Raise PlanError if the prompt of a sample is for another API than the task says.

    The protocol, the needs of the endpoint and the chat template would follow the wrong one.
    """
    if isinstance(sample.prompt, str) == chat:
        form, set_to = ("a text", "leave out chat=True") if chat else ("messages", "set chat=True")
        raise PlanError(
            f"{told}: prompt is {form}, but the Task says chat={chat}: {set_to} in Task(...), or"
            f" make the prompt {'a tuple of Message' if chat else 'a text'}"
        )


def _check_aggregation(aggregation: Any, place: str, made: Callable[..., Any]) -> Any:
    """Check the value of an aggregation, and the functions of its sums."""
    for field, check in _wanted.AGGREGATION.items():
        told = f"{place}: {field} of the Aggregation must be"
        require(getattr(aggregation, field), check, told)
    if _is_checked(aggregation.of, made):
        checks = _wanted.NUMBER, place, ExternalCodeError
        of = check_function(aggregation.of, "aggregation", *checks)
        aggregation = dataclasses.replace(aggregation, of=of)
    if (sums := aggregation.sums) is None:
        return aggregation
    if not _is_checked(sums.value, made):
        return aggregation
    value = _check_sums(sums.value, place)
    return dataclasses.replace(aggregation, sums=dataclasses.replace(sums, value=value))


def _check_sums(function: Callable[..., Any], place: str) -> Any:
    """Check the function of sums; what it raises is an ExternalCodeError too."""
    name, where = "Sums.value", _line_of(function, place)
    checked = check_function(function, name, _wanted.NUMBER, place, ExternalCodeError)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with _blame(f"{name}()", where):
            return checked(*arguments)

    return call


# ------------------------------------------------------------------------------------------------
# launchers and verdict rules


def _check_launch(made: Callable[..., Any], place: str) -> Callable[..., Any]:
    where = _line_of(made, place)

    @functools.wraps(made)
    @asynccontextmanager
    async def launch(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        opened = made(*arguments, **options)
        _require_manager(opened, where)
        try:
            async with _enter(opened) as endpoint:
                require(endpoint, noun("Endpoint"), f"{where}: launch() must yield")
                for field, check in _wanted.ENDPOINT.items():
                    told = f"{where}: {field} of the Endpoint must be"
                    require(getattr(endpoint, field), check, told)
                yield endpoint
        except RuntimeError as error:
            if str(error) not in _ONCE:
                raise
            raise PlanError(f"{where}: launch() must yield an Endpoint exactly once") from error

    return launch


@asynccontextmanager
async def _enter(opened: Any) -> AsyncIterator[Any]:
    """Enter a launcher, whose wrong field of an Endpoint is a PlanError."""
    with explain_fields():
        async with opened as endpoint:
            yield endpoint


def _require_manager(opened: Any, where: str) -> None:
    """Raise PlanError for anything but an asynchronous context manager that yields."""
    inner = getattr(opened, "gen", opened)
    if hasattr(opened, "__aenter__") and (inner is opened or inspect.isasyncgen(inner)):
        return
    if inspect.iscoroutine(inner):
        inner.close()
    raise PlanError(
        f"{where}: launch() must return an asynchronous context manager, not {brief(inner)}",
        hint="Put @asynccontextmanager above it, and `yield Endpoint(...)` into it.",
    )


def _check_judge(name: str, made: Callable[..., Any], place: str) -> Callable[..., Any]:
    """Check a verdict, and give it the name of its rule, which decides how it is read."""
    where = _line_of(made, place)

    @functools.wraps(made)
    def judge(result: Any, *arguments: Any, **options: Any) -> Any:
        with _blame("judge()", where):
            found = made(result, *arguments, **options)
        told, error = f"{where}: judge() must return", ExternalCodeError
        require(found, noun("Verdict"), told, error)
        found = require_fields(found, f"{where}: the Verdict of judge()", error)
        same = (lambda task: task == result.task), f"a Verdict of the task {result.task!r}"
        require(found.task, same, told, error)
        known = (lambda one: one in OUTCOMES), f"a Verdict that is {', '.join(OUTCOMES)}"
        require(found.outcome, known, told, error)
        for field in dataclasses.fields(found):
            value = getattr(found, field.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float):
                    must = f"{where}: {field.name} of the Verdict must be"
                    require(number, _wanted.NUMBER, must, error)
        return dataclasses.replace(found, rule=name)

    return judge


@contextmanager
def _blame(name: str, where: str) -> Iterator[None]:
    """Turn what a function raises into an ExternalCodeError with the line that raised it."""
    try:
        yield
    except (ExternalCodeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # including SystemExit: a rule must not end a run
        said = f"{name} raised {type(error).__name__}: {extensions.describe(error)}"
        at, told = extensions.find_external(error) or where, describe_fields(error) or said
        raise ExternalCodeError(f"{at}: {told}") from error


def _line_of(function: Callable[..., Any], place: str) -> str:
    """Return FILE:LINE of a function, or the place of its file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return place if code is None else f"{code.co_filename}:{code.co_firstlineno}"


_UNKNOWN = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_LACKS = re.compile(r"(\w+)\.__init__\(\) missing \d+ required (?:\S+ )?arguments?: (.*)")
_UNNAMED = re.compile(r"(\w+)\.__init__\(\) takes \d+ positional arguments? but (\d+)")
_OF_STRUCT = re.compile(r"(Unexpected keyword argument|Missing required argument) '(\w+)'")
"""The same of a msgspec.Struct, whose name is not said."""


@contextmanager
def explain_fields(error: type[ServeEvalError] = PlanError) -> Iterator[None]:
    """Raise `error`, with file and line, for a misspelt, missing or unnamed field of a noun."""
    try:
        yield
    except TypeError as raised:
        place, told = extensions.find_offered(raised), describe_fields(raised)
        if place is None or told is None:
            raise
        raise error(f"{place}: {told}") from raised


def describe_fields(error: BaseException) -> str | None:
    """Return what is wrong with the fields of a noun; None for any other error."""
    message = str(error) if isinstance(error, TypeError) else ""
    if (found := _OF_STRUCT.fullmatch(message)) is not None:
        return _describe_struct(error, found[2], lacks=found[1].startswith("Missing"))
    found = _UNKNOWN.search(message) or _LACKS.search(message) or _UNNAMED.search(message)
    noun = None if found is None else _find_noun(found[1])
    if found is None or noun is None or not is_dataclass(noun):
        return None
    if found.re is _LACKS:
        return f"{found[1]} needs {found[2]}"
    known = [field.name for field in fields(noun)]
    if found.re is _UNNAMED:
        return f"{found[1]} takes its fields by name: {found[1]}({known[0]}=...)"
    return f"{found[1]} has no field {found[2]!r}.{closest.nearest(found[2], known)}"


def _describe_struct(error: BaseException, field: str, *, lacks: bool) -> str | None:
    """Return what is wrong with a noun that is a Struct and that the raising function names."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    named = () if at is None else (*at.tb_frame.f_code.co_names, *at.tb_frame.f_code.co_freevars)
    meant = {
        one: noun.__struct_fields__
        for one in named
        if isinstance(noun := _find_noun(one), type)
        and issubclass(noun, msgspec.Struct)
        and (field in noun.__struct_fields__) is lacks
    }
    if not meant:
        return None
    which = " or ".join(meant)
    if lacks:
        return f"{which} needs {field!r}"
    known = dict.fromkeys(name for names in meant.values() for name in names)
    return f"{which} has no field {field!r}.{closest.nearest(field, known)}"


def _find_noun(name: str) -> Any:
    """Return a noun by its name, as serve_eval.schema is no package below this one; else None."""
    return getattr(sys.modules.get("serve_eval.schema"), name, None)
