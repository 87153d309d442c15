"""Combine several answers to the same prompt into one value."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from serve_eval.errors import ServeEvalError

Vote = tuple[Hashable | None, float]
"""An answer (None: none was found) and its score."""


@dataclass(frozen=True, slots=True)
class Majority:
    """The mean score of the votes of `prompts` prompts, of which `tied` had several leaders."""

    value: float
    prompts: int
    tied: int


@dataclass(frozen=True, slots=True)
class PassAt:
    """pass@k, and the lowest and highest value that the missing answers allow."""

    value: float
    low: float
    high: float


def pass_at(right: Sequence[int], n: int, k: int, known: Sequence[int] | None = None) -> PassAt:
    """Return the chance that one of k answers is right, averaged over prompts.

    `right` holds each prompt's number of right answers among the `known` ones (None: all) of `n`.
    With m known answers, c of them right, the estimate is 1 - C(m - c, k) / C(m, k), which is
    unbiased if answers are missing by chance (Chen et al. 2021, "Evaluating large language models
    trained on code", arXiv 2107.03374, equation 1). The bounds count all missing answers as wrong,
    and as right (Manski 1989); the estimate lies between them for each prompt. A prompt with fewer
    than k known answers counts with the middle of its bounds. Raises ServeEvalError without a
    prompt, for k outside 1..n or counts out of range.
    """
    told = list(zip(right, [n] * len(right) if known is None else known, strict=True))
    if not told or not 1 <= k <= n or not all(0 <= c <= m <= n for c, m in told):
        raise ServeEvalError(
            f"pass@{k} needs prompts with 0 to {n} right answers of {n}, and k between 1 and {n}"
        )
    ways = math.comb(n, k)
    sums = [0.0, 0.0, 0.0]
    for (c, m), prompts in Counter(told).items():
        low, high = (1.0 - math.comb(wrong, k) / ways for wrong in (n - c, m - c))
        value = 1.0 - math.comb(m - c, k) / math.comb(m, k) if m >= k else (low + high) / 2.0
        for i, one in enumerate((value, low, high)):
            sums[i] += prompts * one
    value, low, high = (one / len(told) for one in sums)
    return PassAt(min(max(value, low), high), low, high)


def standard_error(means: Sequence[float]) -> float | None:
    """Return the standard error of a mean over questions, from the means of their answers.

    It is the clustered standard error with the question as the cluster (Miller 2024, "Adding Error
    Bars to Evals"): it has the noise of the questions and of the answers. None for one question.
    """
    if len(means) < 2:
        return None
    return statistics.stdev(means) / math.sqrt(len(means))


def majority(prompts: Iterable[Sequence[Vote]]) -> Majority | None:
    """Return the mean score of each prompt's most frequent answer, or None without a prompt.

    Source: Wang et al. 2022, "Self-consistency", arXiv 2203.11171. If several answers have the most
    votes, their scores are averaged, the expected value of a random choice. Votes without an answer
    count only if there are no others.
    """
    total, count, tied = 0.0, 0, 0
    for votes in prompts:
        known = [vote for vote in votes if vote[0] is not None] or list(votes)
        if not known:
            raise ServeEvalError("a prompt without votes has no majority")
        counted = Counter(answer for answer, _ in known)
        most = max(counted.values())
        tied += sum(number == most for number in counted.values()) > 1
        leading = [score for answer, score in known if counted[answer] == most]
        total += math.fsum(leading) / len(leading)
        count += 1
    return Majority(total / count, count, tied) if count else None
