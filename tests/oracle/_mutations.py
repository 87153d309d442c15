"""Turn recorded answers into answers that other models could have written."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

PIECES = (
    "", "\n", "\n\n", " \n\t\n", ".", "...", "。", "，", "！？", "¤", "§", "the", "A", "an the a",
    "Paragraph 3", "段落3", "段落 3", "3", "0003", "1.5", "1,234", "１２", "٣", "½", "北京 天气 很好。", "是 yes",  # noqa: E501
    "# no", "// no", "`x`", "```python\nx = 1\n```", "İstanbul ﬁn ß", "\u200b", "\u2028", "\x85", "\r\n",  # noqa: E501
    "\x00", "e\u0301", "😀", "</s>",
)  # fmt: skip
"""Texts that are inserted into an answer or replace it."""
MARKS = str.maketrans(
    {".": "。", ",": "，", "。": ".", "，": ",", "!": "！", "?": "？", "：": ":", "(": "（"}
)


def mutated(
    text: str, golds: Sequence[str], classes: Sequence[str], rng: random.Random, most: int
) -> Iterator[str]:
    """Yield some thirty variants of an answer of at most `most` characters."""
    start = rng.randrange(max(1, len(text) - most))
    seen, gold = text[start : start + most], rng.choice(golds)[:most]
    here = rng.randrange(len(seen) + 1)
    words, parts = seen.split(" "), gold.split(" ")
    yield seen[:here]
    yield seen[here:]
    yield (seen[:here] + "\n") * 2
    yield seen.translate(MARKS)
    yield "".join(character for character in seen if character.isalnum() or character.isspace())
    yield seen.swapcase()
    yield "\n".join(words)
    yield "\n \n" + seen.replace("\n", "\n\n")
    yield seen + gold
    yield gold + seen
    yield gold
    yield f"  {gold}\n"
    yield gold.upper()
    yield gold.translate(MARKS)
    yield gold[: rng.randrange(len(gold) + 1)]
    yield gold[:here] + "x" + gold[here + 1 :]
    yield " ".join(rng.sample(parts, len(parts)))
    yield " ".join(part for part in parts if rng.random() < 0.7)
    yield ". ".join(parts)
    yield "".join(rng.sample(gold, len(gold)))
    yield " ".join(str(rng.randrange(40)) for _ in range(rng.randrange(6))) + f" {gold}"
    yield ", ".join(rng.sample(classes, min(3, len(classes)))) or "3, 4"
    yield " / ".join([*rng.sample(classes, min(2, len(classes))), gold])
    for _ in range(8):
        piece = rng.choice(PIECES)
        yield rng.choice((piece, seen[:here] + piece + seen[here:], gold + piece, piece + gold))
