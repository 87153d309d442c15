"""The answer equals a formula as the library math-verify reads and compares both (extra `math`).

It extracts the last box, formula or number of an answer and asks sympy if it equals the expected
one: 0.5, 1/2 and \\frac{2}{4} are equal. The result is that of the library's own metric with
expected formulas in LaTeX, as its script for outputs of models has them, except in time: the
library bounds each step by seconds of its own, here one limit bounds all of them, since an answer
such as a tower of powers can occupy sympy for hours. What stops at the limit earns no point.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from serve_eval.errors import PlanError, install_hint
from serve_eval.schema import Response, Score, Scorer
from serve_eval.scorers._expected import (
    find_zero_answer,
    grade_value,
    place,
    text_of,
    text_problems,
)

TIMED_OUT = "timed out"
"""Part of a score and failure mode: comparing the answer took too long."""
PRECISION = 6
TIME_LIMIT_S = 5.0
MOST_TIME_LIMIT_S = 600.0
REPEAT_S = 1.0
_DELIMITED = re.compile(r"(?<!\\)(?:\$|\\[(\[]|\\boxed)")
"""A start of LaTeX's mathematics; not the sign of money, nor a line break of a matrix."""


class _TooLongError(BaseException):
    """The time limit has passed. Not an Exception, which the library and sympy would catch."""


def scorer(*, precision: int = PRECISION, time_limit_s: float = TIME_LIMIT_S) -> Scorer:
    """Return a scorer that gives 1 for an equal formula.

    Numbers are rounded to `precision` decimal places. An answer that takes longer than
    `time_limit_s` gets 0. Raises PlanError for options out of range, or if the optional package is
    missing.
    """
    if precision < 0 or not 0.0 < time_limit_s <= MOST_TIME_LIMIT_S:
        raise PlanError(
            "math: precision must be 0 or more, time_limit_s above 0 and at most"
            f" {MOST_TIME_LIMIT_S:g}"
        )
    package()

    def compare(text: str, expected: object) -> Score:
        return score_formula(
            text, text_of(expected), precision=precision, time_limit_s=time_limit_s
        )

    def score(expected: object, response: Response) -> Score:
        return compare(response.text, expected)

    def problems(expected: object) -> list[str]:
        wrong = text_problems(expected)
        if not wrong and compare(write_answer(text_of(expected)), expected).value < 1.0:
            wrong = [
                f"{place(expected)} must be a formula or a text that math-verify reads,"
                f" such as `expected: \\frac{{1}}{{2}}`, not {text_of(expected)[:60]!r}"
            ]
        return wrong

    def answers(expected: object) -> tuple[str, str]:
        right = write_answer(text_of(expected))
        return right, find_zero_answer(lambda text: compare(text, expected))

    return Scorer(version=1, score=score, answers=answers, problems=problems)


def write_answer(formula: str) -> str:
    """Return an answer that gives a formula."""
    if _DELIMITED.search(formula):
        return f"So it is {formula}."
    return f"So it is $\\boxed{{{formula}}}$."


def score_formula(
    text: str, target: str, *, precision: int = PRECISION, time_limit_s: float = TIME_LIMIT_S
) -> Score:
    """Score 1 if the formula that an answer gives equals the target, which may be LaTeX or plain.

    The part `timed out` is 1 if the limit ended the comparison. Raises PlanError if the optional
    package is missing.
    """
    library = package()
    said: str | None = None
    limit, equal = _Limit(), False
    try:
        with limit.after(time_limit_s):
            found = library.parse(text)
            said = _name(found)
            wanted = library.parse_expected(target)
            equal = library.verify(wanted, found, precision)
    except _TooLongError:
        pass
    late = limit.passed and not equal
    mode = TIMED_OUT if late else "another value"
    return grade_value(
        float(equal), said, {TIMED_OUT: float(late)}, mode=mode if late or said else None
    )


def _name(found: Sequence[Any]) -> str | None:
    """Return what was extracted as the answer has it, or None. The library adds it last."""
    if not found:
        return None
    return found[-1] if isinstance(found[-1], str) else str(found[-1])


class _Limit:
    """A time limit of a block; `passed` says if it passed before the block ended."""

    def __init__(self) -> None:
        self.passed = False

    @contextmanager
    def after(self, limit_s: float) -> Iterator[None]:
        """Raise _TooLongError within the block after the limit.

        Python takes signals in its main thread only. Elsewhere only the limit of the scoring
        process applies. The alarm repeats, because an exception that is raised within a callback
        of C code is lost.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._end)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, limit_s, REPEAT_S)
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        finally:  # also after an alarm between the last two lines
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _end(self, *_: object) -> None:
        self.passed = True
        raise _TooLongError


class _Library:
    """Functions of math-verify, without its own time limits."""

    def __init__(self, parse: Any, verify: Any, plain: Any, latex: Any) -> None:
        self._parse, self._verify, self._plain, self._latex = parse, verify, plain, latex

    def parse(self, text: str) -> list[Any]:
        """Return the formula that a text gives, as sympy has it and as the text has it."""
        found: list[Any] = self._parse(text, (self._plain, self._latex), parsing_timeout=0)
        return found

    def parse_expected(self, formula: str) -> list[Any]:
        """Return an expected formula in the same forms, read as LaTeX."""
        text = formula if _DELIMITED.search(formula) else f"${formula}$"
        found: list[Any] = self._parse(text, (self._latex,), parsing_timeout=0)
        return found

    def verify(self, wanted: Sequence[Any], found: Sequence[Any], precision: int) -> bool:
        """Return True if one of the found formulas equals one of those wanted."""
        return bool(self._verify(wanted, found, precision, timeout_seconds=0))


@lru_cache(maxsize=1)
def package() -> _Library:
    """Return the library, ready to use. Raises PlanError if it is not installed.

    Its import and its first use take seconds, which no answer should pay for.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError as error:
        raise PlanError(
            "formulas are compared by the package math-verify", hint=install_hint("math")
        ) from error
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns that its limits are off
    library = _Library(parse, verify, ExprExtractionConfig(), LatexExtractionConfig())
    library.verify(library.parse_expected("1"), library.parse("$\\frac{2}{2}$"), PRECISION)
    return library
