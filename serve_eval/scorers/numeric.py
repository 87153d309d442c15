"""The answer is a number, the boxed or the last one in the text, within a tolerance.

The module also extracts numbers of worked solutions, by the two filters of lm-evaluation-harness's
gsm8k task (version 3). `strict-match` takes the first number after `####`; `flexible-extract` the
last number of any kind. Both answers and the target then lose commas, dollar signs, everything up
to the last `#### ` and a final full stop, and are compared without regard to case.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import kind, place, value_of
from serve_eval.scorers._numbers import find_first_number, find_last_number

STRICT = "strict-match"
FLEXIBLE = "flexible-extract"

_MARK = "#### "
_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_CHARACTERS = "-$0123456789.,"
_RUN = re.compile(r"[-$0-9.,]+")
"""Every match of _FLEXIBLE is within such a run, so only the last runs need to be searched."""
_TAILS = 32, 200
"""Numbers of characters at the end of a text that mostly and nearly always have its last number."""


def scorer(
    *, absolute: float = 0.0, relative: float = 0.0, take: Literal["last", "first"] = "last"
) -> Scorer:
    """Return a scorer that gives 1 for a number within a tolerance of the expected one.

    The tolerance is `absolute`, or `relative` times the expected number, whichever is more. `take`
    says which number of the answer, or of its last box, counts. Raises PlanError for a negative
    tolerance.
    """
    if absolute < 0.0 or relative < 0.0:
        raise PlanError("numeric: `absolute` and `relative` must be 0 or more")
    read = find_last_number if take == "last" else find_first_number

    def score(expected: object, response: Response) -> Score:
        number = read(response.text)
        target = number_of(expected)
        if number is None or target is None:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        right = math.isfinite(number) and abs(number - target) <= max(
            absolute, relative * abs(target)
        )
        if right:
            return Score(value=1.0, outcome=Outcome.CORRECT, answer=f"{number!r}")
        return Score(value=0.0, outcome=Outcome.WRONG, answer=f"{number!r}", mode="another number")

    def problems(expected: object) -> list[str]:
        if number_of(expected) is not None:
            return []
        value = value_of(expected)
        told = repr(value) if isinstance(value, str | float) else kind(value)
        return [f"{place(expected)} must be a number, such as 42 or 6.02e23, not {told}"]

    def answers(expected: object) -> tuple[str, str]:
        target = number_of(expected) or 0.0
        wrong = target - 2 * max(absolute, relative * abs(target)) - max(1.0, abs(target))
        return f"{target!r}", f"{wrong!r}"

    return Scorer(version=2, score=score, answers=answers, problems=problems, scoring="inline")


def number_of(expected: object) -> float | None:
    """Return the expected number; None if it is not a finite number."""
    value = value_of(expected)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value.replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def extract_strict(text: str) -> str | None:
    """Return the number after the first `#### ` that a number follows; None if there is none."""
    start = text.find(_MARK)  # takes a fraction of the time of the expression
    match = _STRICT.search(text, start) if start >= 0 else None
    return match.group(1) if match else None


def extract_last_strict(text: str) -> str | None:
    """Return the number after the last `#### ` that a number follows; None if there is none."""
    found: list[str] = _STRICT.findall(text)
    return found[-1].strip() if found else None


def extract_flexible(text: str) -> str | None:
    """Return the last number of the text, in any form; None if there is none."""
    last = text[len(text.rstrip(_CHARACTERS)) :]  # most answers end in their number
    if last.isdigit():
        return last
    for tail in (*_TAILS, len(text)):
        start = max(0, len(text) - tail)
        for run in reversed(list(_RUN.finditer(text, start))):
            if start and run.start() == start:
                break  # the run may have begun before
            found: list[tuple[str, str]] = _FLEXIBLE.findall(run.group())
            if found:
                return found[-1][0] or found[-1][1]
    return None


def normalise(text: str) -> str:
    """Return the form in which an extracted number and a target are compared."""
    if text.isdecimal():
        return text
    text = text.replace(",", "").replace("$", "")
    text = text[text.rfind(_MARK) + len(_MARK) :] if _MARK in text else text
    if text.endswith("."):
        text = text[:-1]
    elif text.endswith(".\n"):
        text = text[:-2] + "\n"
    return text.lower()
