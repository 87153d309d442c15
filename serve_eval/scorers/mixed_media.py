"""The answer is that to the question about one medium of several: a letter or a transcript.

Rules: those of the mixed-modality tasks of TensorRT-LLM's suite. Of an answer with sections,
such as "audio: ...", only that of the asked medium counts. A transcript is right if at most half as
many words are wrong as were spoken.
"""

from __future__ import annotations

import re

from serve_eval.schema import Outcome, Score
from serve_eval.scorers._mmmu_answer import find_leading_letter
from serve_eval.scorers.word_errors import count_word_errors, normalize_transcript

LAST_LETTER = {"image": "E", "video": "D"}
"""The last letter of the options of a question about such a medium."""
MOST_WORD_ERRORS = 50.0
"""The word error rate of a right transcript is at most this, in percent."""

_SECTION = re.compile(r"(?im)^[^\S\n]*+(image|audio|video)\s*+:")


def score_about(medium: str, text: str, target: str) -> Score:
    """Score 1 if the answer to a question about a medium is right.

    Raises PlanError for a transcript if the optional package for word errors is missing.
    """
    said = find_section(medium, text)
    if medium == "audio":
        return _score_transcript(said, target)
    letter = find_letter(said, LAST_LETTER[medium])
    if letter is None:
        return Score(value=0.0, outcome=Outcome.UNPARSED)
    right = letter == target
    return Score(
        value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG, answer=letter
    )


def find_section(medium: str, text: str) -> str:
    """Return the last section that a text has for a medium, on one line, or the text."""
    heads = list(_SECTION.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in reversed(list(zip(heads, ends, strict=False))):
        if head[1].casefold() == medium:
            return " ".join(text[head.end() : end].split())
    return text


def find_letter(text: str, last: str) -> str | None:
    """Return the stated letter, else one at the start, else the last one that stands alone.

    Letters go from A up to `last`, and may be small: the article in "a dog" is one.
    """
    letters = f"A-{last}a-{last.lower()}"
    stated = re.search(rf"\b(?:answer\s*+(?:is|:)?|option)\s*+\(?\s*+([{letters}])", text)
    if stated:
        return stated[1].upper()
    if (leading := find_leading_letter(text.lstrip(), letters)) is not None:
        return leading
    alone = re.findall(rf"(?<![A-Za-z])([{letters}])(?![A-Za-z])", text)
    return alone[-1].upper() if alone else None


def _score_transcript(text: str, target: str) -> Score:
    found = count_word_errors(text, target)
    right = 100.0 * found.rate <= MOST_WORD_ERRORS
    return Score(
        value=float(right),
        outcome=Outcome.CORRECT if right else Outcome.WRONG,
        answer=normalize_transcript(text),
    )
