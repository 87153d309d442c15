"""Bet on the share of probes whose distance exceeds a limit.

The evidence is an average of likelihood ratios of shares on one side of the hypothesis's own,
q. Under "the share is at most q" (or, for the other side, at least q), whatever happened before, no
such ratio grows on average, because it is monotone in the share: so it exceeds 1 / alpha at any
time with probability at most alpha (Ville 1939). It depends on the two counts alone, so it may be
looked at after every probe. Sources: Wald, "Sequential tests of statistical hypotheses", 1945;
Ramdas and Wang, "Hypothesis testing with e-values", arXiv 2410.23614, chapter 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from serve_eval.errors import ServeEvalError

ABOVE = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 7 / 8)
"""Places of the alternatives on the way from q to 1, in the order of their shares."""
BELOW = ((0.0, 0.6), (0.1, 0.15), (0.3, 0.15), (0.6, 0.1))
"""Alternatives below q, as shares of q, and their weights. Most of the weight is on no hit."""
HALVINGS = 40


def log_evidence_above(hits: int, misses: int, share: float) -> float:
    """Return ln of the evidence against "at most `share` of the probes are hits"."""
    _check(hits, misses, share)
    weight = 1 / len(ABOVE)
    places = (share + place * (1 - share) for place in ABOVE)
    return _log_average(hits, misses, share, ((place, weight) for place in places))


def log_evidence_below(hits: int, misses: int, share: float) -> float:
    """Return ln of the evidence against "at least `share` of the probes are hits"."""
    _check(hits, misses, share)
    return _log_average(hits, misses, share, ((share * part, weight) for part, weight in BELOW))


def share_upper_bound(hits: int, misses: int, alpha: float) -> float:
    """Return the smallest share that the evidence excludes at level alpha, at any time; 1 if none.

    All larger shares are excluded too.
    """
    need = -math.log(alpha)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if log_evidence_below(hits, misses, middle) >= need:
            high = middle
        else:
            low = middle
    return high


def _check(hits: int, misses: int, share: float) -> None:
    if hits < 0 or misses < 0 or not 0 < share < 1:
        raise ServeEvalError(f"{hits} hits, {misses} misses and a share of {share} do not fit")


def _log_average(
    hits: int, misses: int, share: float, alternatives: Iterable[tuple[float, float]]
) -> float:
    terms = []
    for place, weight in alternatives:
        if place == 0 and hits:
            continue
        growth = hits * math.log(place / share) if hits else 0.0
        growth += misses * math.log((1 - place) / (1 - share))
        terms.append(math.log(weight) + growth)
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms))
