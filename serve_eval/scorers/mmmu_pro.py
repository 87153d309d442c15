"""Letters of MMMU-Pro's answers: the last line that states one, else by MMMU's rules.

Rules: those of the task mmmu_pro of TensorRT-LLM's suite. A line states a letter if it begins with
"answer" or "final answer". A word after it can pass for a letter, as in "Answer: because", and
"Answer is not clear" states the letter I of a question with nine options.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value
from serve_eval.scorers._mmmu_answer import find_given_letter

_STATED = re.compile(
    r"(?i)\s*+(?:final\s++)?answer\s*+(?:is\s*+)?[:\-]?\s*+\(?\s*+([A-J])",
)


def choice(text: str, target: str, options: Sequence[str]) -> Score:
    """Score 1 if the letter that the answer gives is the target.

    Without a letter the answer is `unparsed`; the original guesses one at random.
    """
    letter = find_stated_letter(text, options) or find_given_letter(text, options)
    return grade_value(float(letter == target), letter)


def find_stated_letter(text: str, options: Sequence[str]) -> str | None:
    """Return the letter of an option that the last line with one states."""
    for line in reversed(text.splitlines()):
        stated = _STATED.match(line)
        if stated and stated[1].upper() in ascii_uppercase[: len(options)]:
            return stated[1].upper()
    return None
