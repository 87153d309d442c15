"""Test simulated endpoints and routers, and that each rule keeps its level on them.

Healthy servers are not accused, and a bad one is found among the prompts that the reference had
right. Tests the worst cells of the table that `make calibrate` prints, with fewer rounds.

Tests cells of the table that `make calibrate` prints, with fewer rounds.

Tests cells of the table that `make calibrate` prints, with fewer rounds.

Rejections are compared with the exact level of the discrete test at the simulated size and flip
rate, and may differ from it only by chance. `make calibrate` prints the same for the sizes of real
tasks.
"""

import math
from fractions import Fraction
from functools import cache

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.evidence.attribution import DIFFICULTY, SUBJECT
from serve_eval.evidence.attribution.latency import describe_slow, in_run
from serve_eval.stats.bounds import bounds, noninferiority
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.finding import PairedFinding, finding
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.pairs import pair
from serve_eval.stats.planning import compute_paired_power, noninferiority_power
from serve_eval.stats.sign_tests import mcnemar
from tests.stats.calibrate_workers import compare_all
from tests.stats.simulation import (
    Routed,
    ServedLoadedServers,
    Setting,
    accused,
    altered,
    chance_below,
    endpoints,
    interval,
    played,
    run,
    serve,
    turned,
)

MANY = 400_000


@pytest.mark.parametrize(
    ("flip_rate", "accuracy"), [(0.0, 0.7), (0.034, 0.9), (0.191, 0.7), (1 / 3, 0.5)]
)
def test_the_mixture_has_its_accuracy_and_two_runs_differ_with_the_flip_rate(flip_rate, accuracy):
    random = numpy.random.default_rng(1)
    chances = endpoints(random, MANY, flip_rate=flip_rate, accuracy=accuracy)
    error = 5 * math.sqrt(0.25 / MANY)
    assert chances.mean() == pytest.approx(accuracy, abs=error)
    assert ((chances > 0.0) & (chances < 1.0)).mean() == pytest.approx(3 * flip_rate, abs=error)
    down, up = turned(run(random, chances), run(random, chances))
    assert (down / MANY, up / MANY) == pytest.approx((flip_rate / 2, flip_rate / 2), abs=error)


def test_a_regression_turns_right_answers_wrong_and_a_change_without_one_turns_as_many_the_other_way():  # noqa: E501
    random = numpy.random.default_rng(2)
    before = endpoints(random, MANY, flip_rate=0.05)
    error = 5 * math.sqrt(0.25 / MANY)
    for to_wrong, to_right in ((0.03, 0.0), (0.02, 0.02), (0.0, 0.0)):
        after = altered(random, before, to_wrong=to_wrong, to_right=to_right)
        down, up = ((before - after) == 1.0).mean(), ((after - before) == 1.0).mean()
        assert (down, up) == pytest.approx((to_wrong, to_right), abs=error)
        assert ((after == before) | (abs(after - before) == 1.0)).all()


def test_impossible_endpoints_are_refused():
    random = numpy.random.default_rng(3)
    with pytest.raises(
        ValueError, match=r"no mixture has the flip rate 0\.2 and the accuracy 0\.9"
    ):
        endpoints(random, 10, flip_rate=0.2, accuracy=0.9)
    with pytest.raises(ValueError, match=r"0\.8 of the prompts cannot be turned"):
        altered(random, endpoints(random, MANY, flip_rate=0.0, accuracy=0.7), to_wrong=0.8)


def test_turned_counts_each_row_by_itself():
    reference = numpy.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    candidate = numpy.array([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    down, up = turned(reference, candidate)
    assert (down.tolist(), up.tolist()) == ([2, 0], [1, 1])


@pytest.mark.parametrize("limit", [-3.5, -0.5, 0.5, 2.5, 9.5])
def test_the_distribution_of_the_difference_equals_its_multinomial_sum(limit):
    n, down, up = 9, Fraction(1, 5), Fraction(1, 8)
    total = sum(
        math.comb(n, b) * math.comb(n - b, c) * down**b * up**c * (1 - down - up) ** (n - b - c)
        for b in range(n + 1)
        for c in range(n - b + 1)
        if c - b < limit
    )
    assert chance_below(n, float(down), float(up), limit) == pytest.approx(float(total), abs=1e-12)


@pytest.mark.parametrize(
    ("known", "rounds"), [(Setting(subject=True), 40), (Setting(place=True), 40)]
)
def test_kinds_of_prompts_that_stick_to_servers_accuse_nobody(known, rounds):
    random = numpy.random.default_rng(1)
    told = [played(random, 1.0, known) for _ in range(rounds)]
    assert not any(one.now for one in told)
    assert sum(bool(one.before) for one in told) >= 4  # one in six if all prompts are compared
    assert all(one.dealt_by for one in told)


def test_what_the_reference_had_right_accuses_nobody_where_nothing_else_is_known():
    """More than 4 of 100 are one case in 300 at .01; with all prompts at once some 16 are."""
    random = numpy.random.default_rng(2)
    told = [played(random, 1.0, Setting(runs=3)) for _ in range(100)]
    assert sum(bool(one.now) for one in told) <= 4
    assert sum(bool(one.before) for one in told) >= 9


@pytest.mark.parametrize(("worse", "now", "before"), [(0.1, 18, 10), (0.2, 36, 26)])
def test_a_bad_server_is_found_more_often_against_the_reference(worse, now, before):
    random = numpy.random.default_rng(3)
    told = [played(random, 0.0, Setting(runs=3), worse=worse) for _ in range(40)]
    assert sum("g1" in one.now for one in told) >= now
    assert sum("g1" in one.before for one in told) <= before
    assert not any(one.now - {"g1"} for one in told)


def test_a_router_in_part_by_subject_is_seen_and_the_bad_server_found_all_the_same():
    random = numpy.random.default_rng(4)
    told = [played(random, 0.3, Setting(runs=3, subject=True), worse=0.2) for _ in range(20)]
    assert sum("g1" in one.now for one in told) >= 17
    assert sum(SUBJECT in one.dealt_by for one in told) >= 18


def test_a_router_that_keeps_hard_subjects_together_shows_in_the_reference():
    random = numpy.random.default_rng(5)
    told = [played(random, 1.0, Setting(runs=3), answers=1319) for _ in range(12)]
    assert sum(one.dealt_by == (DIFFICULTY,) for one in told) >= 3


def test_intervals_are_exact():
    assert interval(0, 100) == pytest.approx((0.0, 0.0362167))  # 1 - .025 ** (1 / 100)
    assert interval(100, 100) == pytest.approx((1 - 0.0362167, 1.0))
    assert interval(5, 50) == pytest.approx((0.0332751, 0.2181354), abs=1e-6)


@pytest.mark.parametrize("steady", [False, True])
def test_healthy_servers_behind_a_router_that_hashes_prompts_are_not_accused(steady):
    """Fails if answers are permuted: that accuses a worker in a third of the rounds or more.

    More than 3 of 60 are one case in 250 at .01.
    """
    random = numpy.random.default_rng(1)
    found = [accused(random, Routed(repeats=8, steady=steady)) for _ in range(60)]
    assert sum(bool(before) for before, _ in found) >= 10
    assert sum(bool(now) for _, now in found) <= 3


def test_a_server_that_repeats_its_answers_gives_no_more_evidence_at_random_either():
    random = numpy.random.default_rng(2)
    setting = Routed(repeats=8, hashed=0.0, steady=True)
    assert sum(bool(accused(random, setting)[1]) for _ in range(60)) <= 3


def test_repeats_at_several_servers_find_a_bad_one_more_often():
    random = numpy.random.default_rng(3)
    once, often = (
        [accused(random, Routed(repeats=n, hashed=0.0), worse=0.3)[1] for _ in range(25)]
        for n in (1, 8)
    )
    assert sum("g1" in one for one in often) >= 20
    assert sum("g1" in one for one in often) > sum("g1" in one for one in once)
    assert not any(one - {"g1"} for one in often)


UNEVEN = (0.7, 0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (ServedLoadedServers(shares=UNEVEN), "% of the requests, the others "),
        (ServedLoadedServers(shares=UNEVEN, queued=True), "% of the requests, the others "),
        (
            ServedLoadedServers(long=0.1, sticky=True),
            "prompts with 4,000 tokens to compute, the others 200",
        ),
        (ServedLoadedServers(cached=True), "prompts with 200 tokens to compute, the others 20"),
    ],
)
def test_a_server_with_more_work_is_more_loaded_and_not_slower(setting, why):
    """Fails if all answers are compared: that calls the server slow in every round."""
    random = numpy.random.default_rng(1)
    rounds = [serve(random, setting) for _ in range(10)]
    assert sum(map(compare_all, rounds)) >= 4
    rows = [row for one in rounds for row in in_run(one)]
    assert not any(row.slow for row in rows)
    loaded = [describe_slow(row) for row in rows if row.loaded]
    assert len(loaded) >= 4
    assert all(one.startswith("more_loaded: generation server g0 takes ") for one in loaded)
    assert all(why in one for one in loaded)
    assert all(one.endswith(": more loaded, and not shown to be slower") for one in loaded)


@pytest.mark.parametrize(
    "setting", [ServedLoadedServers(queued=True), ServedLoadedServers(prompts=50, spread=1.0)]
)
def test_a_queue_that_chance_or_repeats_keep_at_a_server_makes_it_not_slow(
    setting,
):
    random = numpy.random.default_rng(2)
    rounds = [serve(random, setting) for _ in range(30)]
    assert sum(map(compare_all, rounds)) >= 5
    assert not any(row.slow for one in rounds for row in in_run(one))


@pytest.mark.parametrize(
    "setting",
    [
        ServedLoadedServers(slower=3.0),
        ServedLoadedServers(slower=3.0, queued=True),
        ServedLoadedServers(slower=3.0, long=0.3),
        ServedLoadedServers(slower=5.0, shares=(0.2, 0.4, 0.2, 0.2)),
    ],
)
def test_a_slow_server_is_named_at_its_own_load(setting):
    random = numpy.random.default_rng(3)
    for _ in range(10):
        [slow] = [row for row in in_run(serve(random, setting)) if row.slow]
        assert slow.worker == "g1"
        assert slow.taken_s > 2 * slow.others_s


REPLICATES = 2000
ALPHA = 0.05
N = 198
FLIP_RATE = 0.088
THETA = classic_test(N, 0.0, 50.0, ALPHA, 0.2).theta / 100
MARGIN = -classic_test(N, 0.0, 50.0, ALPHA, 0.2).threshold / 100

mcnemar_of = cache(mcnemar)


def _outcomes(
    seed,
    n=N,
    flip_rate=FLIP_RATE,
    *,
    drop=0.0,
    both_ways=0.0,
):
    """Return the numbers of prompts down and up between runs of two endpoints, per replicate.

    `both_ways` of the prompts change for good, half of them to right.
    """
    random = numpy.random.default_rng(seed)
    before = endpoints(random, (REPLICATES, n), flip_rate=flip_rate)
    after = altered(random, before, to_wrong=drop + both_ways / 2, to_right=both_ways / 2)
    down, up = turned(run(random, before), run(random, after))
    return list(zip(down.tolist(), up.tolist(), strict=True))


def _pairs(down, up, n):
    before = numpy.arange(n) >= up
    after = numpy.arange(n) < n - down
    return pair(before, after, lo=0.0, hi=1.0, higher_is_better=True)


def _classic_fails(reference, value, n):
    """Judge by the classic rule; `reference` and `value` are numbers of right answers."""
    threshold = classic_test(n, 100 * reference / n, 50.0, ALPHA, 0.2).threshold
    return decide((100 * value / n, 100 * value / n), threshold) is Decision.FAIL


def _check(rejections, level):
    low, high = acceptance_region(REPLICATES, level)
    assert low <= rejections <= high


# ------------------------------------------------------------------------------------- how much
# chance is allowed


@pytest.mark.parametrize(
    ("replicates", "low", "high"), [(1000, 29, 74), (2000, 69, 133), (5000, 201, 302)]
)
def test_the_acceptance_region_equals_exact_binomial_sums(replicates, low, high):
    assert acceptance_region(replicates, 0.05) == (low, high)


def test_the_shared_vectors_hold(vectors):
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
def test_a_region_needs_a_level_and_replicates(arguments, message):
    with pytest.raises(ServeEvalError, match=message):
        acceptance_region(*arguments)


# ------------------------------------------------------------------------------------------------
# the classic rule


@pytest.mark.parametrize(
    ("n", "accuracy", "level"), [(198, 0.5, 0.0486), (4096, 0.5, 0.0499), (4096, 0.9, 0.0030)]
)
def test_the_classic_rule_has_its_level_where_each_side_draws_prompts_of_its_own(
    n, accuracy, level
):
    """The rule's own model: a sigma of 50 is right for an accuracy of one half, else cautious."""
    margin = -classic_test(n, 0.0, 50.0, ALPHA, 0.2).threshold / 100
    change = accuracy * (1 - accuracy)
    exact = chance_below(n, change, change, -n * margin)
    assert exact == pytest.approx(level, abs=6e-5)
    reference, value = (
        numpy.random.default_rng(20240604).binomial(n, accuracy, (2, REPLICATES)).tolist()
    )
    _check(sum(_classic_fails(r, v, n) for r, v in zip(reference, value, strict=True)), exact)


def test_the_classic_rule_hardly_ever_alarms_where_both_sides_answer_the_same_prompts():
    quiet = _outcomes(20240605, flip_rate=0.034)
    assert not any(_classic_fails(100, 100 + up - down, N) for down, up in quiet)
    noisy = _outcomes(20240606, flip_rate=0.191)
    exact = chance_below(N, 0.191 / 2, 0.191 / 2, -N * MARGIN)
    assert exact < 0.004
    _check(sum(_classic_fails(100, 100 + up - down, N) for down, up in noisy), exact)


# --------------------------------------------------------------------------------------------------
# paired tests


@pytest.mark.parametrize("drop", [0.0, MARGIN, THETA], ids=["no drop", "the margin", "theta"])
def test_mcnemars_tests_prove_a_drop_as_often_as_their_exact_sums_say(drop):
    tests = [mcnemar_of(down, up) for down, up in _outcomes(20240601, drop=drop)]
    _check(
        sum(test.p_mid <= ALPHA for test in tests), compute_paired_power(drop, N, FLIP_RATE, ALPHA)
    )
    _check(
        sum(test.p_exact <= ALPHA for test in tests),
        compute_paired_power(drop, N, FLIP_RATE, ALPHA, mid_p=False),
    )


@pytest.mark.parametrize(("n", "flip_rate"), [(100, 0.034), (1319, 0.011)])
def test_mid_p_keeps_its_level_where_little_changes(n, flip_rate):
    tests = [mcnemar_of(down, up) for down, up in _outcomes(20240607, n, flip_rate)]
    _check(
        sum(test.p_mid <= ALPHA for test in tests), compute_paired_power(0.0, n, flip_rate, ALPHA)
    )


def test_a_change_for_good_that_makes_nothing_worse_is_no_regression_to_mid_p():
    tests = [mcnemar_of(down, up) for down, up in _outcomes(20240608, both_ways=0.04)]
    _check(
        sum(test.p_mid <= ALPHA for test in tests),
        compute_paired_power(0.0, N, FLIP_RATE + 0.04, ALPHA),
    )


def test_tango_excludes_the_margin_at_its_exact_level_where_the_drop_equals_it():
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
    drop, fail, inconclusive
):
    @cache
    def found(down, up):
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
def test_an_early_stop_agrees_with_the_full_run_except_with_probability_eps(drop, mode, asked):
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
