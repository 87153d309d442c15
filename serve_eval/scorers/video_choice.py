"""The answer is the letter of an option: the first of A to D that is a word of its own.

Rule: that of VideoMME in TensorRT-LLM's suite. It ignores case, so that the article in "It is a
dog" passes for the letter A.
"""

from __future__ import annotations

import re

from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value

_LETTER = re.compile(r"(?i)\b([A-D])\b")


def first_letter(text: str, target: str) -> Score:
    """Score 1 if the first letter is the target. Without a letter the answer is `unparsed`."""
    found = _LETTER.search(text)
    letter = found[1].upper() if found else None
    return grade_value(float(letter == target), letter)
