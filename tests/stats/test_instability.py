"""Test instability and declines of answers within runs."""

import math
from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstatvar

from serve_eval.errors import ServeEvalError
from serve_eval.stats import onset as module
from serve_eval.stats.judgement import judge
from serve_eval.stats.onset import (
    ALPHA,
    LEAST,
    SHARE,
    DriftHold,
    chart,
    latest,
    limit,
    onset,
    passes,
    worse_than_usual,
)
from serve_eval.stats.pairs import pair
from serve_eval.stats.repeats import (
    effect_of,
    inflate_bound,
    inflate_p,
    instability,
    run_effect,
    successive_dispersion,
)


def _runs(correct_counts, runs):
    """Return rows of right/wrong answers in which a prompt's right answers come first."""
    return (numpy.arange(runs)[:, numpy.newaxis] < numpy.array(correct_counts)).astype(float)


def test_ten_prompts_of_three_runs():
    result = instability(_runs([3, 3, 3, 2, 0, 0, 1, 3, 3, 0], 3))
    assert result.variance == pytest.approx(0.06666666666666667, abs=1e-9)
    assert result.flip_rate == pytest.approx(0.13333333333333333, abs=1e-9)
    assert result.mixed == pytest.approx(0.2)
    assert (result.runs, result.prompts, result.df) == (3, 10, 2)


def test_the_shared_vectors_hold_to_their_tolerance(vectors):
    for vector in vectors("instability"):
        result = instability(_runs(**vector["inputs"]))
        assert result.variance == pytest.approx(vector["expected"]["v"], abs=vector["tolerance"])
        assert result.flip_rate == pytest.approx(
            vector["expected"]["flip_rate"], abs=vector["tolerance"]
        )


def test_cochran_q_of_two_runs_is_the_mcnemar_statistic():
    first = numpy.array([1.0] * 30 + [0.0] * 15 + [1.0] * 55)
    second = numpy.array([0.0] * 30 + [1.0] * 15 + [1.0] * 55)
    result = instability([first, second])
    assert result.cochran_q == pytest.approx((30 - 15) ** 2 / 45)
    assert result.p == pytest.approx(math.erfc(math.sqrt(5 / 2)))


def test_an_endpoint_that_never_varied_has_no_q():
    result = instability([[1, 0, 1], [1, 0, 1]])
    assert (result.variance, result.flip_rate, result.mixed, result.cochran_q, result.p) == (
        0,
        0,
        0,
        None,
        None,
    )


def test_scores_that_are_not_right_or_wrong_have_no_flip_rate():
    result = instability([[0.2, 0.5], [0.4, 0.5]])
    assert result.variance == pytest.approx(0.01)
    assert (result.flip_rate, result.mixed) == (None, None)
    assert result.cochran_q == pytest.approx(1.0)  # a single prompt always gives K - 1


@given(
    arrays(numpy.int8, st.tuples(st.integers(2, 7), st.integers(1, 40)), elements=st.integers(0, 1))
)
def test_q_of_any_scores_is_cochrans_where_they_are_right_or_wrong(answers):
    """Use Cochran's own formula in whole numbers: (K - 1)(K sum C^2 - T^2) / (K T - sum S^2)."""
    count, rows = len(answers), answers.astype(int)
    per_run, per_prompt, total = rows.sum(axis=1), rows.sum(axis=0), int(rows.sum())
    spread = count * total - int((per_prompt**2).sum())
    result = instability(answers)
    if spread == 0:
        assert (result.cochran_q, result.p, result.dispersion) == (None, None, None)
        return
    q = (count - 1) * (count * int((per_run**2).sum()) - total**2) / spread
    assert result.cochran_q == pytest.approx(q, rel=1e-9, abs=1e-12)
    graded = instability(0.1 + 0.3 * rows)
    assert graded.flip_rate is None
    assert graded.cochran_q == pytest.approx(q, rel=1e-9, abs=1e-9)
    assert graded.dispersion == pytest.approx(q / (count - 1), rel=1e-9, abs=1e-9)


def test_p_of_graded_scores_is_uniform_where_runs_differ_only_prompt_by_prompt():
    random = numpy.random.default_rng(3)
    spread = random.exponential(
        size=60
    )  # prompts vary by unequal amounts, and most scores are skewed
    p = [instability(spread * random.beta(0.5, 2.0, (4, 60))).p for _ in range(1500)]
    for level in (0.01, 0.05, 0.2):
        below = sum(value is not None and value <= level for value in p)
        assert abs(below - 1500 * level) < 3.3 * math.sqrt(1500 * level * (1 - level)), level


def test_neighbours_tell_the_spread_of_runs_that_a_step_does_not_raise():
    random = numpy.random.default_rng(5)
    plain = [successive_dispersion(random.random((10, 300)) < 0.5) for _ in range(400)]
    values = [one[0] for one in plain if one is not None]
    assert numpy.mean(values) == pytest.approx(1.0, abs=4 * numpy.std(values) / 20)
    assert numpy.var(values) == pytest.approx(2 / plain[0][1], rel=0.3)
    step = (random.random((10, 300)) < numpy.array([0.6] * 5 + [0.3] * 5)[:, None]).astype(float)
    near, told = successive_dispersion(step), instability(step).dispersion
    assert near[0] < told / 3
    assert successive_dispersion([[1.0, 0.0], [1.0, 0.0]]) is None


def test_a_run_that_is_worse_as_a_whole_shows_in_graded_scores():
    random = numpy.random.default_rng(4)
    scores = random.normal(0.5, 0.1, (3, 200))
    scores[1] -= 0.05
    result = instability(scores)
    assert result.p < 1e-6
    assert result.dispersion > 10.0


def test_the_degrees_of_freedom_say_how_well_the_variance_is_known():
    """Of 1000 prompts of two runs, m disagree.

    v is m / 2000, with a standard error of about sqrt(m) / 2000.
    """
    for m in (2, 10, 50):
        result = instability(_runs([1] * m + [2] * (1000 - m), 2))
        assert result.variance == pytest.approx(m / 2000)
        assert result.variance_df == pytest.approx(2 * m * 999 / (1000 - m))
    assert instability(_runs([1, 2, 2], 2)).variance_df == pytest.approx(2.0)
    assert instability(_runs([2, 2, 2], 2)).variance_df is None
    assert instability(_runs([1], 2)).variance_df is None
    assert instability(_runs([1, 1, 1], 2)).variance_df == math.inf


def test_with_four_runs_the_error_of_the_variance_is_that_of_given_prompts():
    """Compare with scipy's unbiased variance of a k-statistic, prompt by prompt.

    Compare also with the true error of simulated runs.
    """
    random = numpy.random.default_rng(6)
    scores = random.gamma(2.0, size=(5, 30))
    squared_error = sum(kstatvar(column, 2) for column in scores.T) / 30**2
    result = instability(scores)
    assert result.variance_df == pytest.approx(2 * result.variance**2 / squared_error)
    chances = random.beta(0.2, 0.1, 300)
    measured = [instability(random.random((10, 300)) < chances) for _ in range(300)]
    true = numpy.std([one.variance for one in measured])
    said = numpy.mean([one.variance * math.sqrt(2 / (one.variance_df or 1)) for one in measured])
    assert said == pytest.approx(true, rel=0.13)  # the error of a standard deviation of 300 is 4 %


def test_the_widest_change_is_that_of_one_prompt():
    assert instability([[0.1, 0.9, 0.5], [0.4, 0.9, 0.5]]).widest == pytest.approx(0.3)
    assert instability([[0.0, 1.0], [0.0, 1.0]]).widest == 0.0


def test_a_prompt_with_a_missing_score_is_left_out():
    assert instability([[1, math.nan, 0], [1, 0, 1]]) == instability([[1, 0], [1, 1]])


@pytest.mark.parametrize(
    ("runs", "message", "hint"),
    [
        ([[1.0, 0.0]], "two or more runs", "same plan again"),
        ([1.0, 0.0], "two or more runs", "same plan again"),
        ([[math.nan], [1.0]], "no prompt was scored in every run", "failures"),
        ([[math.inf], [1.0]], "finite scores", "scorer"),
    ],
)
def test_runs_that_say_nothing_are_refused(runs, message, hint):
    with pytest.raises(ServeEvalError, match=message) as caught:
        instability(runs)
    assert hint in caught.value.hint


def _pairs(sd, seed, runs=5, n=600):
    """Return runs of one endpoint whose prompts all shift together by a normal logit of this
    spread.
    """
    random = numpy.random.default_rng(seed)
    logits = random.normal(0.5, 1.0, n)
    shifts = sd * random.normal(size=(runs + 1, 1))
    scores = (random.random((runs + 1, n)) < 1.0 / (1.0 + numpy.exp(-logits - shifts))).astype(
        float
    )
    return pair(scores[:runs], scores[runs], lo=0.0, hi=1.0, higher_is_better=True)


def test_runs_that_differ_as_a_whole_inflate_every_error():
    pairs = _pairs(0.6, 1)
    effect = run_effect(pairs)
    assert effect is not None
    expected = instability(pairs.reference)
    assert (effect.q, effect.df) == (expected.cochran_q, 4)
    assert effect.p < 0.001
    assert effect.inflation == pytest.approx(math.sqrt(effect.q / 4))
    told = judge(pairs, margin=0.1)
    assert told.run_effect == effect
    assert told.bounds.lower < told.test.mean - 0.03


def test_alike_runs_are_left_as_they_are_with_rare_exceptions():
    effects = [run_effect(_pairs(0.0, seed)) for seed in range(100)]
    found = [effect.inflation > 1.0 for effect in effects if effect is not None]
    assert len(found) == 100
    assert sum(found) <= 12  # 5 on average; 13 or more has a chance of .0015


def test_a_common_shift_of_whole_runs_is_no_proof_of_a_drop():
    """Each side of 100 comparisons has its own shift.

    Without the inflation some 40 of them would fail.
    """
    alarms = sum(
        p <= 0.05
        for seed in range(100)
        if (p := judge(_pairs(0.4, seed, runs=10), margin=0.1).test.p) is not None
    )
    assert alarms <= 14


def test_both_sides_tell_of_run_effects():
    one_each = pair([1.0, 0.0] * 20, [0.0, 1.0] * 20, lo=0.0, hi=1.0, higher_is_better=True)
    assert run_effect(one_each) is None
    pairs = _pairs(0.6, 3)
    turned = pair(pairs.candidate, pairs.reference, lo=0.0, hi=1.0, higher_is_better=True)
    assert run_effect(turned) == run_effect(pairs)


def test_what_the_whole_reference_shows_is_allowed_for_on_a_subset():
    whole = _pairs(0.4, 5)
    effect = effect_of(whole.reference)
    assert effect.inflation > 1.5
    few = pair(
        whole.reference[:, :40], whole.candidate[:, :40], lo=0.0, hi=1.0, higher_is_better=True
    )
    alone = run_effect(few)
    assert alone.inflation == 1.0
    assert run_effect(replace(few, reference_effect=effect)) == effect


def test_calm_runs_of_the_candidate_do_not_hide_what_the_reference_shows():
    pairs = _pairs(0.4, 5)
    calm = _pairs(0.0, 6, runs=8).reference
    both = pair(pairs.reference, calm, lo=0.0, hi=1.0, higher_is_better=True)
    assert run_effect(both) == effect_of(pairs.reference)


def test_alike_prompts_of_a_cluster_are_no_effect_of_runs():
    found = 0
    for seed in range(60):
        random = numpy.random.default_rng(seed)
        passages = (random.random((4, 60)) < 0.6).astype(float)
        scores = numpy.repeat(passages, 10, axis=1)
        clusters = [i // 10 for i in range(600)]
        effect = run_effect(
            pair(scores[:3], scores[3], lo=0.0, hi=1.0, higher_is_better=True, clusters=clusters)
        )
        found += effect is not None and effect.inflation > 1.0
    assert found <= 9  # 3 on average; without the clusters 3 of 4


def test_few_prompts_that_vary_tell_nothing():
    runs = numpy.ones((3, 50))
    runs[0, :9] = 0.0
    assert run_effect(pair(runs, numpy.ones(50), lo=0.0, hi=1.0, higher_is_better=True)) is None


@pytest.mark.parametrize(
    ("p", "expected"), [(0.5, 0.5), (0.9, 0.9), (0.0227501, 0.158655), (0.0, 0.0)]
)
def test_evidence_shrinks_by_the_factor(p, expected):
    assert inflate_p(p, 2.0) == pytest.approx(expected, rel=1e-4)
    assert inflate_p(p, 1.0) == p
    assert inflate_bound(-math.inf, 0.0, 2.0) == -math.inf
    assert inflate_bound(-3.0, -1.0, 2.0) == -5.0


def _falling(seed, before, after):
    random = numpy.random.default_rng(seed)
    return numpy.concatenate([random.random(100) >= before, random.random(300) >= after])


def test_a_fall_from_95_to_50_percent_at_request_100_is_noticed_within_40_requests_in_95_of_100_seeds():  # noqa: E501
    found = [onset(_falling(seed, 0.95, 0.5), 0.008) for seed in range(100)]
    assert sum(one is not None and 100 < one.noticed <= 140 for one in found) >= 95
    assert numpy.median([abs(one.since - 101) for one in found if one is not None]) <= 3


def test_healthy_runs_are_accused_no_more_often_than_alpha():
    random = numpy.random.default_rng(4)
    accused = sum(onset(random.random(400) < 0.2, 0.01) is not None for _ in range(500))
    assert accused <= 5


@pytest.mark.parametrize("share", [0.002, 0.005, 0.01, 0.02])
def test_the_level_holds_where_hardly_anything_is_bad(share):
    """Bad answers are as rare as among prompts that a reference had right."""
    random = numpy.random.default_rng(5)
    assert (
        sum(onset(random.random(400) < share, 0.008) is not None for _ in range(250)) <= 1
    )  # 2 are allowed


def test_the_likeliest_split_and_the_shares_on_both_sides():
    bad = numpy.array([False] * 60 + [True] * 30 + [False] * 10)
    one = onset(bad, 0.01)
    assert (one.since, one.before, one.after) == (61, 0.0, 0.75)
    assert 61 < one.noticed < 75


@pytest.mark.parametrize(
    "bad", [[True] * 100, [False] * 100, [True] * 50 + [False] * 50, [True] * (LEAST - 1), []]
)
def test_nothing_that_turned_worse(bad):
    assert onset(numpy.array(bad, dtype=numpy.bool_), 0.01) is None


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_the_chart_is_the_largest_likelihood_ratio_over_its_windows(bad):
    row = numpy.array(bad)

    def likelihood(part):
        hits, n = int(part.sum()), len(part)
        return sum(k * numpy.log(k / n) for k in (hits, n - hits) if k)

    windows = [8, 10, 13, 17, 22, 29, 38, 50]
    drawn = chart(row)
    assert drawn[0] == drawn[1] == 0.0
    for end in range(2, len(row) + 1):
        ratios = [0.0]
        for window in (w for w in windows if w < end):
            early, late = row[: end - window], row[end - window : end]
            if late.mean() > early.mean():
                ratios.append(likelihood(early) + likelihood(late) - likelihood(row[:end]))
        assert drawn[end] == pytest.approx(max(ratios), abs=1e-9)


def _first_above(bad, over):
    """Compute the whole chart to find what `passes` finds without drawing it."""
    above = numpy.flatnonzero(chart(bad) > over)
    return int(above[0]) if above.size else None


@given(
    st.integers(0, 2**32),
    st.integers(1, 3000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 14),
    st.integers(4, 512),
)
@settings(max_examples=60, deadline=None)
def test_what_passes_a_limit_is_found_without_drawing_the_chart(seed, n, share, rise, over, block):
    random = numpy.random.default_rng(seed)
    bad = random.random(n) < share
    bad[n // 2 :] |= random.random(n - n // 2) < rise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHORTEST_BLOCK", block)
        expected = _first_above(bad, over)
        assert passes(bad, over) == expected
        if expected is not None:
            assert passes(bad, over, expected - 1) == expected
            assert passes(bad[: expected - 1], over) is None


def test_a_limit_that_the_chart_reaches_exactly_is_not_passed():
    bad = numpy.array([False] * 60 + [True] * 30)
    for at in range(61, 91):
        assert passes(bad[:at], float(chart(bad)[:at].max())) == _first_above(
            bad[:at], float(chart(bad)[:at].max())
        )
    top = float(chart(bad).max())
    assert passes(bad, top) is None
    assert passes(bad, numpy.nextafter(top, 0.0)) == int(chart(bad).argmax())


def test_only_windows_that_may_pass_are_computed(monkeypatch):
    """A healthy run needs hardly any windows, however long it is.

    Otherwise a long run would cost as much as its whole chart.
    """
    computed = 0

    def counted(*given):
        nonlocal computed
        computed += len(given[2])
        return ratio(*given)

    ratio = module._ratio
    monkeypatch.setattr(module, "_ratio", counted)
    n = 40_000
    bad = numpy.random.default_rng(2).random(n) < 0.1
    assert onset(bad, 0.008) is None
    assert computed < n
    chart(bad)
    assert computed > 20 * n


def test_the_limit_rises_with_the_length_of_the_run_and_the_certainty():
    assert limit(100, 0.01) < limit(1000, 0.01) < limit(1000, 0.001)
    with pytest.raises(ServeEvalError, match="alpha"):
        limit(100, 0.0)


def _hold(values, references=None, *, worst=0.0):
    hold = DriftHold(1000, worst)
    for i, value in enumerate(values):
        hold.add(value, None if references is None else references[i])
    return hold


@pytest.mark.parametrize("n", [0, 5, 9, 20, 21, 400])
def test_the_latest_value_of_the_chart_is_that_of_the_chart(n):
    bad = numpy.random.default_rng(n).random(n) < numpy.linspace(0.1, 0.5, n)
    assert latest(bad) == pytest.approx(chart(bad)[-1])


def test_a_turn_for_the_worse_holds_a_stop_up_and_its_end_lets_it_go():
    sound = [1.0, 1.0, 1.0, 0.0] * 50
    assert not _hold(sound).holds()
    turned = _hold([*sound, *[0.0] * 12])
    assert turned.holds()
    assert turned.times == 1
    assert not _hold([*sound, *[0.0] * 12, *sound]).holds()


def test_missing_answers_count_as_bad():
    sound = [1.0] * 100
    assert _hold([*sound, *[None] * 6]).holds()
    known = _hold([*sound, *[None] * 6], [0.0] * 106)
    assert known.holds()


def test_against_the_reference_a_drop_is_seen_that_hard_questions_hide():
    """Half of the answers are wrong anyway; then those are wrong that the reference has right."""
    references = [1.0, 0.0] * 100
    candidates = [*references[:194], *[0.0] * 6]
    assert _hold(candidates, references).holds()
    assert not _hold(candidates).holds()


def test_the_limit_is_the_share_of_the_one_that_alarms():
    """Add answers one by one: it holds from the first one that lifts the chart above the share."""
    values = [1.0] * 300
    for _ in range(20):
        values.append(0.0)
        bad = worse_than_usual(numpy.array(values, dtype=float), 0.0)
        assert _hold(values).holds() == (chart(bad)[-1] > SHARE * limit(1000, ALPHA))
