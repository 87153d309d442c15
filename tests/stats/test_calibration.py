"""Test with seeded simulations that each rule keeps its level and power.

Rejections are compared with the exact level of the discrete test at the simulated size and flip
rate, and may differ from it only by chance. `make calibrate` prints the same for the sizes of real
tasks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.bounds import bounds, noninferiority
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.finding import PairedFinding, finding
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.pairs import Pairs, pair
from serve_eval.stats.planning import compute_paired_power, noninferiority_power
from serve_eval.stats.sign_tests import McNemar, mcnemar
from tests.stats.simulation import altered, chance_below, endpoints, run, turned

REPLICATES = 2000
ALPHA = 0.05
N = 198
FLIP_RATE = 0.088
THETA = classic_test(N, 0.0, 50.0, ALPHA, 0.2).theta / 100
MARGIN = -classic_test(N, 0.0, 50.0, ALPHA, 0.2).threshold / 100

mcnemar_of = cache(mcnemar)


def _outcomes(
    seed: int,
    n: int = N,
    flip_rate: float = FLIP_RATE,
    *,
    drop: float = 0.0,
    both_ways: float = 0.0,
) -> list[tuple[int, int]]:
    """Return the numbers of prompts down and up between runs of two endpoints, per replicate.

    `both_ways` of the prompts change for good, half of them to right.
    """
    random = numpy.random.default_rng(seed)
    before = endpoints(random, (REPLICATES, n), flip_rate=flip_rate)
    after = altered(random, before, to_wrong=drop + both_ways / 2, to_right=both_ways / 2)
    down, up = turned(run(random, before), run(random, after))
    return list(zip(down.tolist(), up.tolist(), strict=True))


def _pairs(down: int, up: int, n: int) -> Pairs:
    before = numpy.arange(n) >= up
    after = numpy.arange(n) < n - down
    return pair(before, after, lo=0.0, hi=1.0, higher_is_better=True)


def _classic_fails(reference: float, value: float, n: int) -> bool:
    """Judge by the classic rule; `reference` and `value` are numbers of right answers."""
    threshold = classic_test(n, 100 * reference / n, 50.0, ALPHA, 0.2).threshold
    return decide((100 * value / n, 100 * value / n), threshold) is Decision.FAIL


def _check(rejections: int, level: float) -> None:
    low, high = acceptance_region(REPLICATES, level)
    assert low <= rejections <= high


# ------------------------------------------------------------------------------------- how much
# chance is allowed


@pytest.mark.parametrize(
    ("replicates", "low", "high"), [(1000, 29, 74), (2000, 69, 133), (5000, 201, 302)]
)
def test_the_acceptance_region_equals_exact_binomial_sums(
    replicates: int, low: int, high: int
) -> None:
    assert acceptance_region(replicates, 0.05) == (low, high)


def test_the_shared_vectors_hold(vectors: Any) -> None:
    for vector in vectors("calibration_region"):
        inputs, expected = vector["inputs"], vector["expected"]
        region = acceptance_region(
            inputs["replicates"], inputs["alpha"], inputs["check_false_alarm"]
        )
        assert region == (expected["low"], expected["high"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 0.05), "replicates"), ((10, 0.0), "level"), ((10, 0.05, 1.0), "false alarm rate")],
)
def test_a_region_needs_a_level_and_replicates(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ServeEvalError, match=message):
        acceptance_region(*arguments)


# ------------------------------------------------------------------------------------------------
# the classic rule


@pytest.mark.parametrize(
    ("n", "accuracy", "level"), [(198, 0.5, 0.0486), (4096, 0.5, 0.0499), (4096, 0.9, 0.0030)]
)
def test_the_classic_rule_has_its_level_where_each_side_draws_prompts_of_its_own(
    n: int, accuracy: float, level: float
) -> None:
    """The rule's own model: a sigma of 50 is right for an accuracy of one half, else cautious."""
    margin = -classic_test(n, 0.0, 50.0, ALPHA, 0.2).threshold / 100
    change = accuracy * (1 - accuracy)
    exact = chance_below(n, change, change, -n * margin)
    assert exact == pytest.approx(level, abs=6e-5)
    reference, value = (
        numpy.random.default_rng(20240604).binomial(n, accuracy, (2, REPLICATES)).tolist()
    )
    _check(sum(_classic_fails(r, v, n) for r, v in zip(reference, value, strict=True)), exact)


def test_the_classic_rule_hardly_ever_alarms_where_both_sides_answer_the_same_prompts() -> None:
    quiet = _outcomes(20240605, flip_rate=0.034)
    assert not any(_classic_fails(100, 100 + up - down, N) for down, up in quiet)
    noisy = _outcomes(20240606, flip_rate=0.191)
    exact = chance_below(N, 0.191 / 2, 0.191 / 2, -N * MARGIN)
    assert exact < 0.004
    _check(sum(_classic_fails(100, 100 + up - down, N) for down, up in noisy), exact)


# --------------------------------------------------------------------------------------------------
# paired tests


@pytest.mark.parametrize("drop", [0.0, MARGIN, THETA], ids=["no drop", "the margin", "theta"])
def test_mcnemars_tests_prove_a_drop_as_often_as_their_exact_sums_say(drop: float) -> None:
    tests = [mcnemar_of(down, up) for down, up in _outcomes(20240601, drop=drop)]
    _check(
        sum(test.p_mid <= ALPHA for test in tests), compute_paired_power(drop, N, FLIP_RATE, ALPHA)
    )
    _check(
        sum(test.p_exact <= ALPHA for test in tests),
        compute_paired_power(drop, N, FLIP_RATE, ALPHA, mid_p=False),
    )


@pytest.mark.parametrize(("n", "flip_rate"), [(100, 0.034), (1319, 0.011)])
def test_mid_p_keeps_its_level_where_little_changes(n: int, flip_rate: float) -> None:
    tests = [mcnemar_of(down, up) for down, up in _outcomes(20240607, n, flip_rate)]
    _check(
        sum(test.p_mid <= ALPHA for test in tests), compute_paired_power(0.0, n, flip_rate, ALPHA)
    )


def test_a_change_for_good_that_makes_nothing_worse_is_no_regression_to_mid_p() -> None:
    tests = [mcnemar_of(down, up) for down, up in _outcomes(20240608, both_ways=0.04)]
    _check(
        sum(test.p_mid <= ALPHA for test in tests),
        compute_paired_power(0.0, N, FLIP_RATE + 0.04, ALPHA),
    )


def test_tango_excludes_the_margin_at_its_exact_level_where_the_drop_equals_it() -> None:
    margin, n = 0.03, 500
    exact = noninferiority_power(margin, n, FLIP_RATE, ALPHA, drop=margin)
    assert 0.039 <= exact <= 0.055
    excluded = cache(lambda down, up: noninferiority(_pairs(down, up, n), margin, ALPHA).holds)
    _check(sum(excluded(down, up) for down, up in _outcomes(20240603, n, drop=margin)), exact)


# Shares of FAIL and INCONCLUSIVE for 198 prompts by the exact sum over all outcomes.
@pytest.mark.parametrize(
    ("drop", "fail", "inconclusive"),
    [(0.0, 0.019, 0.002), (MARGIN, 0.896, 0.056)],
    ids=["no drop", "the margin"],
)
def test_the_finding_fails_as_often_as_its_exact_sums_say_and_whenever_the_classic_rule_does(
    drop: float, fail: float, inconclusive: float
) -> None:
    @cache
    def found(down: int, up: int) -> tuple[PairedFinding, McNemar]:
        test = mcnemar_of(down, up)
        return finding(test.p_mid, ALPHA, bounds(_pairs(down, up, N), ALPHA).lower, MARGIN), test

    outcomes = _outcomes(20240609, drop=drop)
    findings = [found(down, up)[0] for down, up in outcomes]
    _check(findings.count(PairedFinding.FAIL), fail)
    _check(findings.count(PairedFinding.INCONCLUSIVE), inconclusive)
    classic = [(down, up) for down, up in outcomes if _classic_fails(100, 100 + up - down, N)]
    assert len(classic) > 800 or drop == 0.0
    assert all(found(down, up)[1].p_mid <= ALPHA for down, up in classic)


# ------------------------------------------------------------------------------------------------
# the early stop


@pytest.mark.parametrize(
    ("drop", "mode", "asked"),
    [
        (0.0, "pairs", 0.60),
        (MARGIN, "pairs", 0.95),
        (THETA, "pairs", 0.85),
        (0.0, "mean only", 0.70),
        (MARGIN, "mean only", 0.95),
        (THETA, "mean only", 0.85),
    ],
    ids=[
        f"{drop}, {mode}"
        for mode in ("pairs", "mean only")
        for drop in ("no drop", "the margin", "theta")
    ],
)
def test_an_early_stop_agrees_with_the_full_run_except_with_probability_eps(
    drop: float, mode: str, asked: float
) -> None:
    """Check as well that it asks at most the share `asked` of the prompts.

    A rule that never stops is never wrong. The prompts of an endpoint are drawn independently, so
    their order is already random.
    """
    eps, runs = 0.05, 1000
    random = numpy.random.default_rng(20240610)
    before = endpoints(random, (runs, N), flip_rate=0.034)
    after = altered(random, before, to_wrong=drop)
    wrong = looked_at = 0
    for reference, candidate in zip(run(random, before), run(random, after), strict=True):
        if mode == "pairs":
            stop, values = EarlyClassic.for_pairs(N, MARGIN, eps=eps), candidate - reference
        else:
            threshold = reference.mean() - MARGIN
            stop, values = EarlyClassic.mean_only(N, threshold, eps=eps), candidate
        early = stop.update(values.tolist())
        full = (
            Decision.FAIL if _classic_fails(reference.sum(), candidate.sum(), N) else Decision.PASS
        )
        wrong += early is not None and early is not full
        looked_at += stop.looked_at
    assert wrong <= acceptance_region(runs, eps)[1]
    assert looked_at < asked * runs * N
