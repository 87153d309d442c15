"""McNemar's test on paired right/wrong answers, of which only the changed ones carry information.

Without a real drop each changed prompt is equally likely to have changed either way, so the number
that went from right to wrong is binomial with probability 1/2 (McNemar 1947). The mid-p variant
counts half the probability of the observed number, which brings the level close to alpha without
exceeding it (Fagerland, Lydersen, Laake 2013).
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.stats.inputs import check_count


@dataclass(frozen=True, slots=True)
class McNemar:
    """One-sided p-values for "the candidate is worse", and the exact two-sided one."""

    p_exact: float
    p_mid: float
    p_exact_two_sided: float


def mcnemar(down: int, up: int) -> McNemar:
    """Return the p-values for `down` prompts from right to wrong and `up` from wrong to right.

    No change at all gives p = 1. p_exact = P(Bin(down + up, 1/2) >= down); p_mid = p_exact -
    P(Bin(down + up, 1/2) = down) / 2, computed as the mean of P(>= down) and P(> down). Raises
    ServeEvalError for negative counts.
    """
    check_count("the number of prompts that became wrong", down)
    check_count("the number of prompts that became right", up)
    changed = down + up
    if changed == 0:
        return McNemar(1.0, 1.0, 1.0)
    from scipy.special import bdtr

    at_least = float(bdtr(up, changed, 0.5))
    more = float(bdtr(up - 1, changed, 0.5)) if up > 0 else 0.0
    return McNemar(
        p_exact=at_least,
        p_mid=(at_least + more) / 2.0,
        p_exact_two_sided=min(1.0, 2.0 * float(bdtr(min(down, up), changed, 0.5))),
    )
