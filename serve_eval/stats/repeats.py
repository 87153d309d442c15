"""Combine several answers to the same prompt into one value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from serve_eval.errors import ServeEvalError

Vote = tuple[Hashable | None, float]
"""An answer (None: none was found) and its score."""


def pass_at(right: Sequence[int], n: int, k: int) -> float:
    """Return the chance that one of k answers is right, averaged over prompts.

    `right` holds each prompt's number of right answers of `n`. The estimate is 1 - C(n - c, k) /
    C(n, k), which is unbiased (Chen et al. 2021, "Evaluating large language models trained on
    code", arXiv 2107.03374, equation 1). Raises ServeEvalError without a prompt, for k outside 1..n
    or counts outside 0..n.
    """
    if not right or not 1 <= k <= n or not all(0 <= c <= n for c in right):
        raise ServeEvalError(
            f"pass@{k} needs prompts with 0 to {n} right answers of {n}, and k between 1 and {n}"
        )
    ways = math.comb(n, k)
    return math.fsum(1.0 - math.comb(n - c, k) / ways for c in right) / len(right)


def majority(prompts: Iterable[Sequence[Vote]]) -> float | None:
    """Return the mean score of each prompt's most frequent answer, or None without a prompt.

    Source: Wang et al. 2022, "Self-consistency", arXiv 2203.11171. If several answers have the most
    votes, their scores are averaged, the expected value of a random choice. Votes without an answer
    count only if there are no others.
    """
    total, count = 0.0, 0
    for votes in prompts:
        known = [vote for vote in votes if vote[0] is not None] or list(votes)
        if not known:
            raise ServeEvalError("a prompt without votes has no majority")
        counted = Counter(answer for answer, _ in known)
        most = max(counted.values())
        leading = [score for answer, score in known if counted[answer] == most]
        total += math.fsum(leading) / len(leading)
        count += 1
    return total / count if count else None
