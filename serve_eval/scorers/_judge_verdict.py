"""Read the verdict in what a judge says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from serve_eval.errors import PlanError
from serve_eval.scorers._markup import strip_latex
from serve_eval.scorers._matching import shortest

TAIL = 4000
"""Number of characters at the end that are searched for a verdict."""
SEARCH_S = 0.5
LINE = r"(?im)^(?:[^\w\n]|_)*(?:final +)?verdict(?![^\W_])(.*)$"
"""Line with the verdict if no pattern is given: `Verdict: yes`, `**Final verdict:** yes.`"""
_AROUND = " \t\r:=*_#`.,;!\"'()[]<>\u2013\u2014"


def reader(
    success: Sequence[str],
    failure: Sequence[str],
    points: float | None,
    pattern: str | None,
    *,
    inverted: bool,
) -> Callable[[str], float | None]:
    """Return a function that converts what a judge says to a number from 0 to 1, or None.

    None means that there is no verdict. The last match of `pattern` (None: LINE) counts, by its
    first group if it has one, and it must contain only one of the words, or a number of points. A
    search that takes SEARCH_S seconds is ended, and finds nothing. Raises PlanError for invalid
    options.
    """
    worth = _words(success, failure) if points is None else _points(points)
    last = _last(LINE if pattern is None else pattern)

    def read(text: str) -> float | None:
        tail = text[-TAIL:]
        verdict = last(strip_latex(tail) if pattern is None else tail)
        value = None if verdict is None else worth(verdict.strip(_AROUND))
        return 1.0 - value if inverted and value is not None else value

    return read


def _last(pattern: str) -> Callable[[str], str | None]:
    # Like the scorer of that name: no answer, even one that a judge quotes, must block a run.
    import regex

    if shortest(pattern) > TAIL:  # the engine would expand it and fill the memory
        raise PlanError(f"pattern: matches only texts of {shortest(pattern)} characters or more")
    try:
        found = regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise PlanError(f"pattern: not a regular expression: {error}") from error
    group = min(found.groups, 1)

    def last(text: str) -> str | None:
        verdict: str | None = None
        try:
            for match in found.finditer(text, timeout=SEARCH_S):
                verdict = match.group(group)
        except TimeoutError:
            return None
        return verdict

    return last


def _words(success: Sequence[str], failure: Sequence[str]) -> Callable[[str], float | None]:
    words = {_word(word): 1.0 for word in success} | {_word(word): 0.0 for word in failure}
    if not success or not failure or "" in words or len(words) < len(success) + len(failure):
        raise PlanError(
            "success: `success` and `failure` need different words, such as [pass] and [fail]"
        )
    return lambda verdict: words.get(_word(verdict))


def _word(text: str) -> str:
    return text.strip(f"{_AROUND}-").casefold()


def _points(most: float) -> Callable[[str], float | None]:
    if not (math.isfinite(most) and most > 0.0):
        raise PlanError("points: must be above 0")
    number = re.compile(rf"(\d+(?:[.,]\d+)?)(?:\s*/\s*{re.escape(f'{most:g}')})?")

    def worth(verdict: str) -> float | None:
        found = number.fullmatch(verdict)
        given = math.inf if found is None else float(found[1].replace(",", "."))
        return given / most if given <= most else None

    return worth
