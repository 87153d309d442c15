"""Test whether a drop is proven: one p-value for a set of pairs, by the test that fits them.

A lower value has two innocent explanations. One is the endpoint's own noise, under which each run
of either side is equally likely to be the candidate (`exchange`). The other is another build of
equal accuracy: it permanently alters some answers and loses as many as it gains, it is steadier, or
it solves other prompts (`equal_accuracy`). With several runs per side these are two tests, and a
drop is proven only if neither explains it: `permutation` uses the larger p. For right/wrong answers
of one run per side, both are McNemar's test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.equal_accuracy import equal_accuracy_test
from serve_eval.stats.finding import Range
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.pairs import Pairs
from serve_eval.stats.permutation import PermutationTest, exchange_test, sign_flip_test
from serve_eval.stats.run_effects import inflate_p
from serve_eval.stats.unit_values import (
    average_largest_gain,
    scale_to_largest,
    scale_to_range,
)

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray


class Method(StrEnum):
    """The test for a drop.

    AUTO is mid-p McNemar for plain right/wrong pairs and PERMUTATION for all others. EXCHANGE tests
    for the same endpoint alone: it has more power, but too often reports a drop for a build that
    permanently changes answers. PAIRED_T is valid only for many prompts and one run per side.
    """

    AUTO = "auto"
    MCNEMAR_MIDP = "mcnemar_midp"
    MCNEMAR_EXACT = "mcnemar_exact"
    PERMUTATION = "permutation"
    EXCHANGE = "exchange"
    SIGN_FLIP = "signflip"
    PAIRED_T = "paired_t"


@dataclass(frozen=True, slots=True)
class DropTest:
    """The result of the test of a drop.

    `mean` and `se` are of the complete pairs, in the unit of the scores; negative is worse.
    `p_range` holds p with every missing score at its worst and at its best for the candidate; `p`
    is its upper end, so that a drop is proven only if it is proven for any value of the missing
    answers. `p_exact` is p without the mid-p correction; None for the t test, which has `df`.
    Fields that need two independent pairs are None if there are fewer.
    """

    method: Method
    mean: float
    se: float | None
    df: int | None
    p: float | None
    p_exact: float | None
    p_range: Range | None


def drop_test(pairs: Pairs, method: str = Method.AUTO) -> DropTest:
    """Test "the candidate is worse", one-sided.

    Raises ServeEvalError for an unknown method or one that does not fit.
    """
    import numpy

    chosen = _method(pairs, method)
    kept = pairs.complete & (pairs.weights > 0.0)
    if not kept.any():
        raise ServeEvalError(
            "no complete pair has a weight above 0", hint="check the weights and the failures"
        )
    mean, se, df = float(numpy.average(pairs.worst[kept], weights=pairs.weights[kept])), None, None
    codes = None if pairs.clusters is None else pairs.clusters[kept]
    if (int(kept.sum()) if codes is None else len(numpy.unique(codes))) >= 2:
        known = paired_t(pairs.worst[kept], pairs.weights[kept], codes)
        se, df = known.se, known.df if chosen is Method.PAIRED_T else None
    if pairs.units < 2:
        return DropTest(chosen, mean, se, df, None, None, None)
    if pairs.missing == 0:
        p, exact = _p_values(pairs, chosen, at_best=False)
        return DropTest(chosen, mean, se, df, p, exact, (p, p))
    if not math.isfinite(pairs.span):
        return DropTest(chosen, mean, se, df, 1.0, None, (0.0, 1.0))
    at_worst, _ = _p_values(pairs, chosen, at_best=False)
    at_best, exact = _p_values(pairs, chosen, at_best=True)
    ends = min(at_worst, at_best), max(at_worst, at_best)
    return DropTest(chosen, mean, se, df, ends[1], exact, ends)


def inflate(test: DropTest, inflation: float) -> DropTest:
    """Return the test with its standard error multiplied by `inflation`.

    This allows for differences between whole runs (`run_effects`).
    """
    if inflation == 1.0 or test.p is None or test.p_range is None:
        return test
    low, high = test.p_range
    return replace(
        test,
        se=None if test.se is None else inflation * test.se,
        p=inflate_p(test.p, inflation),
        p_exact=None if test.p_exact is None else inflate_p(test.p_exact, inflation),
        p_range=(inflate_p(low, inflation), inflate_p(high, inflation)),
    )


def _method(pairs: Pairs, method: str) -> Method:
    try:
        chosen = Method(method)
    except ValueError as error:
        raise ServeEvalError(
            f"{method!r} is not a paired test", hint=f"choose one of {', '.join(Method)}"
        ) from error
    if chosen is Method.AUTO:
        return Method.MCNEMAR_MIDP if pairs.binary else Method.PERMUTATION
    if chosen in (Method.MCNEMAR_MIDP, Method.MCNEMAR_EXACT) and not pairs.binary:
        raise ServeEvalError(
            "McNemar's test needs right/wrong answers of one run per side, without weights or"
            " clusters",
            hint="use method auto, which uses the permutation test here",
        )
    return chosen


def _p_values(pairs: Pairs, method: Method, *, at_best: bool) -> tuple[float, float | None]:
    """Return p, and p without the mid-p correction.

    Missing scores are at their best or worst for the candidate.
    """
    differences = pairs.best if at_best else pairs.worst
    if method is Method.PAIRED_T:
        return paired_t(differences, pairs.weights, pairs.clusters).p, None
    if method in (Method.MCNEMAR_MIDP, Method.MCNEMAR_EXACT):
        test = mcnemar(int((differences < 0.0).sum()), int((differences > 0.0).sum()))
        return test.p_mid if method is Method.MCNEMAR_MIDP else test.p_exact, test.p_exact
    tests: list[PermutationTest] = []
    weights = pairs.weights if pairs.weighted else None
    single = pairs.reference_runs == pairs.candidate_runs == 1  # both hypotheses are then the same
    if method is Method.EXCHANGE or (method is Method.PERMUTATION and not single):
        runs = pairs.fill_runs(at_best=at_best)
        tests.append(exchange_test(runs, pairs.candidate_runs, weights, pairs.clusters))
    if method is Method.PERMUTATION and not single:
        tests.append(_test_equal_accuracy(pairs, differences, at_best=at_best))
    elif method in (Method.SIGN_FLIP, Method.PERMUTATION):
        tests.append(sign_flip_test(differences, weights, pairs.clusters))
    return max(test.p_mid for test in tests), max(test.p_exact for test in tests)


def _test_equal_accuracy(
    pairs: Pairs, differences: FloatArray, *, at_best: bool
) -> PermutationTest:
    """Test the differences of the independent units, scaled to [-1, 1]."""
    if pairs.far_ends or not math.isfinite(pairs.span):
        return equal_accuracy_test(scale_to_largest(pairs, differences))
    values, _ = scale_to_range(pairs, differences)
    return equal_accuracy_test(values, average_largest_gain(pairs, at_best=at_best))
