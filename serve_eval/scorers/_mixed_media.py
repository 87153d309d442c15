"""Find the answer to the question about one medium of several: its section, and a letter in it.

Rules: those of the mixed-modality tasks of TensorRT-LLM's suite. Of an answer with sections, such
as "audio: ...", only that of the asked medium counts.
"""

from __future__ import annotations

import re

from serve_eval.scorers._mmmu_answer import find_leading_letter

LAST_LETTER = {"image": "E", "video": "D"}
"""The last letter of the options of a question about such a medium."""

_SECTION = re.compile(r"(?im)^[^\S\n]*+(image|audio|video)\s*+:")


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
