"""The upper tail of a binomial distribution (Clopper and Pearson 1934 invert it)."""

from __future__ import annotations


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Return the probability of at least this number of successes in independent trials."""
    from scipy.special import bdtrc

    return float(bdtrc(successes - 1, trials, chance)) if successes > 0 else 1.0
