"""Check the types and the scores that functions outside serve-eval must return.

Types of `serve_eval.schema`, which is no package below this one, are known by their names.
"""

from __future__ import annotations

import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AnySet
from enum import StrEnum
from typing import Any

import msgspec

from serve_eval.errors import ExternalCodeError, PlanError, ServeEvalError

Check = tuple[Callable[[Any], bool], str]
"""A test of a value, and what the value must be."""


def require(
    value: object, check: Check, told: str, error: type[ServeEvalError] = PlanError
) -> None:
    """Raise an error that starts with `told` if a value fails its check."""
    fits, wanted = check
    if not fits(value):
        if inspect.iscoroutine(value):
            value.close()
        raise error(f"{told} {wanted}, not {brief(value)}")


def require_fields(value: object, told: str, error: type[ServeEvalError] = PlanError) -> Any:
    """Return a noun of plain data with the types of its fields. Raises `error` for another type."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=to_number)
        return msgspec.convert(plain, type(value))
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as wrong:
        raise error(f"{told} is not valid: {wrong}") from wrong


def brief(value: object) -> str:
    """Return a value with its type, on one short line."""
    shown = escape(" ".join(reprlib.repr(value).split()))
    return shown if value is None else f"the {type(value).__name__} {shown}"


def escape(text: str) -> str:
    """Return the text with lone surrogates escaped, which UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def to_number(value: Any) -> Any:
    """Return the plain number of another package's, such as numpy's. Raises TypeError."""
    try:
        return value.item()
    except (AttributeError, ValueError):
        raise TypeError(f"{brief(value)} is neither a number nor a text") from None


def is_a(value: object, name: str) -> bool:
    """Return True for an instance of the class of this name in serve_eval.schema."""
    return any(
        one.__name__ == name and one.__module__.startswith("serve_eval.schema")
        for one in type(value).__mro__
    )


def noun(name: str) -> Check:
    """Return the check for a noun of serve_eval.schema."""
    article = "an" if name[0] in "AEIOU" else "a"
    return (lambda value: is_a(value, name)), f"{article} {name} of serve_eval.schema"


def or_none(check: Check) -> Check:
    """Return the check that also accepts None."""
    return (lambda value: value is None or check[0](value)), f"{check[1]}, or None"


def many(name: str) -> Check:
    """Return the check for a list of nouns of serve_eval.schema."""
    return (lambda value: is_list(value) and all(is_a(v, name) for v in value)), f"a list of {name}"


def is_list(value: object) -> bool:
    """Return True for a sequence that is no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_finite(value: object) -> bool:
    """Return True for a finite number, also for another package's, but not for True or False."""
    if isinstance(value, bool | str | bytes):
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _of_type(kind: Any) -> Callable[[object], bool]:
    def fits(value: object) -> bool:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, TypeError):
            return False
        return True

    return fits


def _is_json(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


FUNCTION: Check = (callable, "a function")
MAPPING: Check = ((lambda value: isinstance(value, Mapping)), "a mapping")
TEXT: Check = (_of_type(str), "a text")
TEXTS: Check = (_of_type(list[str]), "a list of texts")
WHOLE: Check = (_of_type(int), "a whole number")
FLAG: Check = (_of_type(bool), "True or False")
NUMBER: Check = (is_finite, "a finite number")
TABLES: Check = (_is_json, "a mapping that JSON can hold")
NUMBERS: Check = (
    (
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(key, str) for key in value)
            and all(map(is_finite, value.values()))
        )
    ),
    "a mapping from texts to finite numbers",
)
NOTHING: Check = ((lambda value: value is None), "None")
_TWO_TEXTS: Check = (
    _of_type(tuple[str, str]),
    "two texts, one with full marks and one with score 0",
)
_SCORING: Check = (
    (lambda value: value in ("inline", "apart", "loaded")),
    "'inline', 'apart' or 'loaded'",
)
_NEEDS: Check = (
    (lambda value: isinstance(value, AnySet) and all(is_a(one, "Need") for one in value)),
    "a frozenset of Need",
)

LAUNCHER_FUNCTIONS: Mapping[str, Check] = {
    "commands": (_of_type(list[list[str]]), "a list of commands, each a list of texts"),
    "files": (
        (lambda value: MAPPING[0](value) and all(isinstance(one, str) for one in value.values())),
        "a mapping from paths to texts",
    ),
    "beginning": (_of_type(str | bool | None), "a text, True, False or None"),
    "count_tokens": (_of_type(int | None), "a whole number or None"),
    "job_size": noun("JobSize"),
    "expects": TEXTS,
    "lint": TEXTS,
}
"""The checks of the results of functions next to `launch`."""
SCORER: Mapping[str, Check] = {
    "version": WHOLE,
    "score": FUNCTION,
    "answers": FUNCTION,
    "problems": FUNCTION,
    "program": or_none(FUNCTION),
    "requires": _NEEDS,
    "questions": or_none(FUNCTION),
    "decisive": or_none(MAPPING),
    "scoring": _SCORING,
}
"""The fields of a Scorer."""
TASK: Mapping[str, Check] = {
    "name": TEXT,
    "version": WHOLE,
    "reference_file": TEXT,
    "metric": noun("Metric"),
    "hypothesis": noun("Hypothesis"),
    "sampling": noun("SamplingParams"),
    "protocol": MAPPING,
    "extra": MAPPING,
    "load": FUNCTION,
    "score": FUNCTION,
    "answers": FUNCTION,
    "breakdown": FUNCTION,
    "secondary": FUNCTION,
    "aggregation": noun("Aggregation"),
    "prompt_logprobs": FLAG,
    "chat": FLAG,
    "requires": _NEEDS,
    "context_tokens": or_none(WHOLE),
    "acceptance_length": or_none(TEXT),
    "control_of": or_none(TEXT),
    "datasets": TEXTS,
    "program": or_none(FUNCTION),
    "questions": or_none(FUNCTION),
    "fit": or_none(FUNCTION),
    "failure_mode": or_none(FUNCTION),
    "remember": or_none(FUNCTION),
    "judges_empty": FLAG,
    "unsafe": FLAG,
    "scoring": _SCORING,
}
"""The fields of a Task."""
PLAIN = ("metric", "hypothesis", "sampling")
"""The fields of a Task that hold plain data, whose own fields are checked too."""
BEFORE: Mapping[str, Check] = {"answers": _TWO_TEXTS, "problems": TEXTS}
"""The checks of the results of a Scorer's or a Task's functions before anything is asked."""
AFTER: Mapping[str, Check] = {
    "program": or_none(noun("Program")),
    "questions": many("Question"),
    "failure_mode": or_none(TEXT),
    "breakdown": TABLES,
    "secondary": NUMBERS,
}
"""The checks of the results of their functions that read answers."""
SAMPLE: Mapping[str, Check] = {
    "id": TEXT,
    "target": TEXT,
    "prompt": (
        lambda value: (
            type(value) is str
            or (isinstance(value, tuple) and all(is_a(one, "Message") for one in value))
        ),
        "a text or a tuple of Message",
    ),
    "metadata": MAPPING,
    "override": or_none(noun("Override")),
    "choices": TEXTS,
    "heads": TEXTS,
    "group": TEXT,
}
"""The fields of a Sample."""
DATASET: Mapping[str, Check] = {
    "samples": (is_list, "a list of Sample"),
    "files": many("SourceFile"),
    "total": WHOLE,
    "deviation": or_none(TEXT),
    "notes": TEXTS,
}
"""The fields of a Dataset."""
ENDPOINT: Mapping[str, Check] = {"base_url": TEXT, "model": or_none(TEXT)}
"""The fields of an Endpoint; its `info` checks itself."""
AGGREGATION: Mapping[str, Check] = {
    "name": TEXT,
    "of": FUNCTION,
    "monotone": FLAG,
    "sums": or_none(noun("Sums")),
}
"""The fields of an Aggregation."""


SLACK = 1e-9
"""Amount by which rounding may carry a score beyond its range."""


def check_score(score: Any, told: str, lo: float | None, hi: float | None) -> Any:
    """Return a score with the exact types of a Score and a value from `lo` to `hi`.

    Similar types, such as numpy's, are converted. Raises ExternalCodeError, whose message names
    the function as `told` does.
    """
    if not is_a(score, "Score"):
        raise ExternalCodeError(
            f"{told} must return a Score of serve_eval.schema, not {brief(score)}"
        )
    if _is_exact(score, lo, hi):
        return score
    begin = f"{told} must return a Score whose"
    if not isinstance(score.mode, str | None):
        raise ExternalCodeError(f"{begin} mode is a text or None, not {brief(score.mode)}")
    try:
        parts = dict(score.parts.items())
    except (AttributeError, TypeError):
        raise ExternalCodeError(f"{begin} parts are a mapping, not {brief(score.parts)}") from None
    return msgspec.structs.replace(
        score,
        value=_to_float(score.value, f"{begin} value is", lo, hi),
        outcome=_to_outcome(score, begin),
        answer=None if score.answer is None else str(score.answer),
        parts={
            escape(str(name)): _to_float(part, f"{begin} part {name!r} is", None, None)
            for name, part in parts.items()
        },
    )


def _is_exact(score: Any, lo: float | None, hi: float | None) -> bool:
    """Return True for a score that nothing is to be converted in, as nearly all are."""
    value = score.value
    return (
        value.__class__ is float
        and (-math.inf if lo is None else lo) <= value <= (math.inf if hi is None else hi)
        and math.isfinite(value)
        and score.outcome.__class__ is _find_outcomes(score.__class__)
        and (score.answer is None or score.answer.__class__ is str)
        and (score.mode is None or score.mode.__class__ is str)
        and score.parts.__class__ is dict
        and not score.parts
    )


def _to_float(value: Any, told: str, lo: float | None, hi: float | None) -> float:
    """Return a finite number within a range. Raises ExternalCodeError."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    low, high = -math.inf if lo is None else lo, math.inf if hi is None else hi
    if math.isfinite(number) and low - SLACK <= number <= high + SLACK:
        return number
    wanted = "a finite number" if lo is None and hi is None else f"from {low:g} to {high:g}"
    raise ExternalCodeError(f"{told} {wanted}, not {brief(value)}")


def _to_outcome(score: Any, begin: str) -> StrEnum:
    outcomes = _find_outcomes(score.__class__)
    try:
        return outcomes(score.outcome)
    except ValueError:
        words = ", ".join(outcomes)
        raise ExternalCodeError(
            f"{begin} outcome is one of {words}, not {brief(score.outcome)}"
        ) from None


@functools.cache
def _find_outcomes(kind: Any) -> type[StrEnum]:
    """Return the class of a Score's outcome."""
    found = {field.name: field.type for field in msgspec.structs.fields(kind)}
    outcomes: type[StrEnum] = found["outcome"]
    return outcomes
