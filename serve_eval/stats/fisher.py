"""Fisher's exact test: is a share larger in one group than in another, given how many there are in both together?"""

from __future__ import annotations

import math

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count


def fisher_larger(hits: int, of: int, other_hits: int, others: int) -> float:
    """The one-sided p-value of "the first group's share is no larger": P(X >= hits) of the hypergeometric distribution
    of the hits of a group of `of`, drawn from both (Fisher 1935). 1 where either group is empty. Raises ServeEvalError
    for counts that cannot be.
    """
    for name, count, most in (("hits", hits, of), ("hits of the others", other_hits, others)):
        check_count(name, count)
        if count > most:
            raise ServeEvalError(f"{count} {name} among {most}")
    bad, total = hits + other_hits, of + others
    whole = _ln_choose(total, of)
    terms = (_ln_choose(bad, k) + _ln_choose(total - bad, of - k) - whole for k in range(hits, min(bad, of) + 1))
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _ln_choose(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
