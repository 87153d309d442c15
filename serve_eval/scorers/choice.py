"""Letters out of multiple-choice answers."""

from __future__ import annotations

import re

from serve_eval.schema import Outcome, Score

_LETTER = re.compile(r"\s*([A-Za-z])(?![A-Za-z])")


def prefix_match(text: str, target: str) -> Score:
    """1 when the stripped text starts with the target letter, as in TensorRT-LLM's MMLU evaluator.

    The comparison is case-sensitive and looks at no more than the prefix, so "Apple" is right for "A". The extracted
    answer is what a reader would call the letter (a letter that stands alone); without one a wrong text is `unparsed`.
    """
    match = _LETTER.match(text)
    letter = match.group(1) if match else None
    if text.strip().startswith(target):
        return Score(value=1.0, outcome=Outcome.CORRECT, answer=target)
    if letter is None:
        return Score(value=0.0, outcome=Outcome.UNPARSED)
    return Score(value=0.0, outcome=Outcome.WRONG, answer=letter)
