"""The answer is the letter of an option: the first of A to D that is a word of its own.

Rule: that of VideoMME in TensorRT-LLM's suite. It ignores case, so that the article in "It is a
dog" passes for the letter A.
"""

from __future__ import annotations

import re

from serve_eval.schema import Outcome, Score

_LETTER = re.compile(r"(?i)\b([A-D])\b")


def first_letter(text: str, target: str) -> Score:
    """Score 1 if the first letter is the target. Without a letter the answer is `unparsed`."""
    found = _LETTER.search(text)
    if found is None:
        return Score(value=0.0, outcome=Outcome.UNPARSED)
    right = found[1].upper() == target
    return Score(
        value=float(right),
        outcome=Outcome.CORRECT if right else Outcome.WRONG,
        answer=found[1].upper(),
    )
