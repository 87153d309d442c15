"""Final answers of competition problems: an integer in `\\boxed{}`.

The strict reading is that of lm-evaluation-harness's AIME tasks: the last `\\boxed{}`, else the
text between the first and the last dollar sign, else the whole text, compared as text after
Hendrycks' normalisation of MATH answers. Only the steps of that normalisation that can leave an
integer are done: a fraction or a root never equals one. The lenient reading uses the last integer
of the same place and compares numbers, so that 033 is 33.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from serve_eval.schema import Outcome, Score

STRICT, LENIENT = "string", "integer"

_SPACES = ("\n", "\\!")
_MARKUP = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
_INTEGER = re.compile(r"(-?)0*(\d+)")


def extract(text: str) -> str:
    """Return the place of the answer: the last box, else between the outer dollars, else all."""
    box = last_box(text)
    if box is not None:
        return box
    first, last = text.find("$"), text.rfind("$")
    return text[first + 1 : last] if first < last else text


def last_box(text: str) -> str | None:
    """Return what is boxed last, or None.

    It is the text after `\\boxed ` up to a dollar sign, else that in `\\boxed{...}` with balanced
    braces.
    """
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$")[0]
    start = text.rfind("\\boxed{")
    if start < 0 or start != text.rfind("\\boxed"):
        return None
    first = start + len("\\boxed{")
    depth = 1
    for i in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[first:i]
    return None


def normalise(text: str) -> str:
    """Return the form in which an answer and a target are compared as text."""
    text = _without(text, _SPACES).replace("\\\\", "\\")
    text = _without(text, _MARKUP)
    text = text.split("\\text{ ")[0] if text.count("\\text{ ") == 1 else text
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    head, equals, tail = text.partition("=")
    if equals and "=" not in tail and len(head) <= 2:
        text = tail
    return text.replace(" ", "")


def _without(text: str, removed: Sequence[str]) -> str:
    for one in removed:
        text = text.replace(one, "")
    return text


def integer_answer(text: str, target: str) -> Score:
    """Score 1 if the strict reading is the target; the parts have both readings."""
    place = extract(text)
    numbers = _INTEGER.findall(place.replace(",", ""))
    strict = normalise(place) == normalise(target)
    lenient = numbers[-1:] == _INTEGER.findall(target)
    parts = {STRICT: float(strict), LENIENT: float(lenient)}
    if strict:
        return Score(value=1.0, outcome=Outcome.CORRECT, answer=place, parts=parts)
    outcome = Outcome.WRONG if numbers else Outcome.UNPARSED
    return Score(value=0.0, outcome=outcome, answer=place if numbers else None, parts=parts)
