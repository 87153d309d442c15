"""Compare how many tokens two sides count in the same prompts. Pure.

Every server reports these counts, also one that gives no token ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LEAST, SAME_SHARE = 10, 0.95
"""Fewest prompts that are compared, and the share of them that has to differ by the same number of
tokens to have one cause."""


@dataclass(frozen=True, slots=True)
class CountedGap:
    """The difference of the counts: `tokens` in `prompts` of `of` prompts.

    `tokens` is positive if the second side counts more, 0 if both always count the same, and None
    if the difference is not the same in most prompts.
    """

    tokens: int | None
    prompts: int
    of: int

    @property
    def amount(self) -> str:
        """The size and the direction of the difference."""
        if not self.tokens:
            return "other numbers of tokens"
        word = "more" if self.tokens > 0 else "fewer"
        return f"{abs(self.tokens)} token{'s' if abs(self.tokens) > 1 else ''} {word}"

    @property
    def cause(self) -> str:
        """The probable cause, for the side that counts otherwise."""
        if self.tokens is None:
            return "another tokenizer, or white space is stripped"
        if self.tokens == 1:
            return "it adds the first token twice, or one that the other side does not add"
        if self.tokens == -1:
            return "the first token is missing"
        return "another chat template, such as one that " + (
            "adds a system message or a date" if self.tokens > 0 else "drops a system message"
        )


def find_gap(gaps: Sequence[int]) -> CountedGap | None:
    """Return the difference of two sides' counts, or None if too few prompts are compared.

    `gaps` has by how many tokens the second side counts each prompt longer.
    """
    if len(gaps) < LEAST:
        return None
    gap, same = Counter(gaps).most_common(1)[0]
    if not any(gaps):
        return CountedGap(0, same, len(gaps))
    if gap and same >= SAME_SHARE * len(gaps):
        return CountedGap(gap, same, len(gaps))
    return CountedGap(None, sum(one != 0 for one in gaps), len(gaps))
