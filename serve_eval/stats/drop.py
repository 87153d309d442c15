"""Is a drop proven? One p-value for a set of pairs, by the test that fits them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.finding import Range
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.pairs import Pairs
from serve_eval.stats.sign_flip import sign_flip_p

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray


class Method(StrEnum):
    """AUTO is mid-p McNemar for plain right/wrong pairs and the paired t test for all others."""

    AUTO = "auto"
    MCNEMAR_MIDP = "mcnemar_midp"
    MCNEMAR_EXACT = "mcnemar_exact"
    PAIRED_T = "paired_t"
    SIGN_FLIP = "signflip"


@dataclass(frozen=True, slots=True)
class DropTest:
    """`mean` and `se` are of the complete pairs, in the unit of the scores; negative is worse.

    `p_range` holds p with every missing score at its worst and at its best for the candidate; `p` is its upper end, so
    that a drop is proven only when it is proven whatever the missing answers were. `p_exact` accompanies McNemar's
    tests, `df` the t test. What fewer than two independent pairs cannot give is None.
    """

    method: Method
    mean: float
    se: float | None
    df: int | None
    p: float | None
    p_exact: float | None
    p_range: Range | None


def drop_test(pairs: Pairs, method: str = Method.AUTO) -> DropTest:
    """Test "the candidate is worse" one-sided. Raises ServeEvalError for an unknown method or one that does not fit."""
    import numpy

    chosen = _method(pairs, method)
    kept = pairs.complete & (pairs.weights > 0.0)
    if not kept.any():
        raise ServeEvalError("no complete pair has a weight above 0", hint="look at the weights and the failures")
    mean, se, df = float(numpy.average(pairs.worst[kept], weights=pairs.weights[kept])), None, None
    codes = None if pairs.clusters is None else pairs.clusters[kept]
    if (int(kept.sum()) if codes is None else len(numpy.unique(codes))) >= 2:
        known = paired_t(pairs.worst[kept], pairs.weights[kept], codes)
        se, df = known.se, known.df if chosen is Method.PAIRED_T else None
    if pairs.units < 2:
        return DropTest(chosen, mean, se, df, None, None, None)
    if pairs.missing == 0:
        p, exact = _p_values(pairs, chosen, pairs.worst)
        return DropTest(chosen, mean, se, df, p, exact, (p, p))
    if not math.isfinite(pairs.span):
        return DropTest(chosen, mean, se, df, 1.0, None, (0.0, 1.0))
    at_worst, _ = _p_values(pairs, chosen, pairs.worst)
    at_best, exact = _p_values(pairs, chosen, pairs.best)
    ends = min(at_worst, at_best), max(at_worst, at_best)
    return DropTest(chosen, mean, se, df, ends[1], exact, ends)


def _method(pairs: Pairs, method: str) -> Method:
    try:
        chosen = Method(method)
    except ValueError as error:
        raise ServeEvalError(f"{method!r} is no paired test", hint=f"choose one of {', '.join(Method)}") from error
    if chosen is Method.AUTO:
        return Method.MCNEMAR_MIDP if pairs.binary else Method.PAIRED_T
    if chosen in (Method.MCNEMAR_MIDP, Method.MCNEMAR_EXACT) and not pairs.binary:
        raise ServeEvalError(
            "McNemar's test needs right/wrong answers of one run a side, without weights or clusters",
            hint="use method auto, which takes the paired t test here",
        )
    return chosen


def _p_values(pairs: Pairs, method: Method, differences: FloatArray) -> tuple[float, float | None]:
    """p, and the exact p where the method is one of McNemar's."""
    if method is Method.PAIRED_T:
        return paired_t(differences, pairs.weights, pairs.clusters).p, None
    if method is Method.SIGN_FLIP:
        return sign_flip_p(differences, pairs.weights if pairs.weighted else None, pairs.clusters), None
    test = mcnemar(int((differences < 0.0).sum()), int((differences > 0.0).sum()))
    return test.p_mid if method is Method.MCNEMAR_MIDP else test.p_exact, test.p_exact
