"""Test the rules that compare pairs.

Covers the conditions of each outcome and the text next to the classic verdict.
"""

import math
from dataclasses import replace

import pytest

from serve_eval.errors import PlanError
from serve_eval.report.summary.rows import describe_change
from serve_eval.schema import (
    Acceptance,
    AccuracySpec,
    Hypothesis,
    Reference,
    VerdictOutcome,
)
from serve_eval.stats.pairs import pair
from serve_eval.verdicts.references import AcceptanceLength
from serve_eval.verdicts.rules import anchors, classic, noninferiority, paired, tokens
from serve_eval.verdicts.rules._acceptance import judge as judge_acceptance
from serve_eval.verdicts.rules._paired import compare, warnings
from tests.made_results import make_result

REFERENCE = Reference(task="mmlu", model="m", spec=AccuracySpec(), value=70.0)


def _case(n, down, up, missing=0):
    """Return a reference that is right on 70 % of n prompts, and a candidate.

    The candidate has `down` answers turned wrong and `up` turned right.
    """
    right = round(0.7 * n)
    before = [1.0] * right + [0.0] * (n - right)
    after = [0.0] * down + before[down : n - up] + [1.0] * up
    after[:missing] = [math.nan] * missing
    scored = [value for value in after if not math.isnan(value)]
    lo, hi = 100 * sum(scored) / n, 100 * (sum(scored) + missing) / n
    result = make_result(
        n,
        100 * sum(scored) / len(scored) if scored else None,
        task="mmlu",
        scored=len(scored),
        failed=missing,
        bounds=(lo, hi),
    )
    pairs = pair([before], [after], lo=0.0, hi=1.0, higher_is_better=True)
    return result, pairs, Hypothesis(num_samples=n), replace(REFERENCE, value=100 * right / n)


@pytest.mark.parametrize(
    ("n", "down", "up", "outcome", "finding"),
    [
        (4096, 70, 70, VerdictOutcome.PASS, "PASS"),
        (4096, 90, 50, VerdictOutcome.PASS, "SMALL_DROP"),
        (4096, 150, 50, VerdictOutcome.FAIL, "FAIL"),
        (4096, 50, 150, VerdictOutcome.PASS, "PASS"),
        (40, 3, 1, VerdictOutcome.PASS, "PASS"),
        (198, 25, 17, VerdictOutcome.INCONCLUSIVE, "INCONCLUSIVE"),
    ],
)
def test_the_paired_rule_follows_its_finding(n, down, up, outcome, finding):
    result, pairs, hypothesis, reference = _case(n, down, up)
    verdict = paired.judge(result, reference, hypothesis, pairs)
    assert (verdict.outcome, verdict.paired.finding, verdict.rule) == (outcome, finding, "paired")
    assert (verdict.paired.down, verdict.paired.up, verdict.paired.pairs) == (down, up, n)
    assert verdict.paired.difference == pytest.approx(100 * (up - down) / n)
    assert bool(verdict.reasons) == (outcome is VerdictOutcome.INCONCLUSIVE)
    assert any("small_drop" in warning for warning in verdict.warnings) == (finding == "SMALL_DROP")


def test_the_share_that_flipped_is_that_of_both_ways():
    result, pairs, hypothesis, reference = _case(4096, 90, 50)
    told = paired.judge(result, reference, hypothesis, pairs).paired
    assert told.flip_rate == (90 + 50) / 4096
    graded = pair([[1.0, 0.5] * 20], [[1.0, 0.0] * 20], lo=0.0, hi=1.0, higher_is_better=True)
    assert compare(graded, result, margin=1.0, alpha=0.05, max_missing=0.02).flip_rate is None


def test_the_design_effect_is_that_of_the_groups_of_complete_pairs():
    """Ten passages of four prompts, of which four are lost as a whole, and a missing answer."""
    result, *_ = _case(40, 0, 0)
    after = [math.nan] + [1.0] * 23 + [0.0] * 16
    passages = [i // 4 for i in range(40)]
    pairs, alone = (
        pair([[1.0] * 40], [after], lo=0.0, hi=1.0, higher_is_better=True, clusters=groups)
        for groups in (passages, None)
    )
    told = compare(pairs, result, margin=1.0, alpha=0.05, max_missing=0.05)
    assert told.groups == 10
    assert told.design_effect == pytest.approx(4.0, rel=0.1)
    told = compare(alone, result, margin=1.0, alpha=0.05, max_missing=0.05)
    assert (told.groups, told.design_effect) == (None, 1.0)


def test_the_degrees_of_freedom_of_a_t_test_are_kept():
    result, pairs, _, _ = _case(40, 3, 1)
    told = compare(pairs, result, margin=1.0, alpha=0.05, max_missing=0.02, method="paired_t")
    assert (told.method, told.df) == ("paired_t", 39)
    assert compare(pairs, result, margin=1.0, alpha=0.05, max_missing=0.02).df is None


def test_a_regression_that_the_classic_rule_lets_pass_is_seen_beside_it():
    result, pairs, hypothesis, reference = _case(4096, 90, 50)  # a drop of 0.98 points
    verdict = classic.judge(result, reference, hypothesis, pairs)
    assert verdict.outcome is VerdictOutcome.PASS
    assert verdict.paired.p < 0.001
    assert any("small_drop" in warning for warning in verdict.warnings)
    assert replace(verdict, paired=None, warnings=()) == replace(
        classic.judge(result, reference, hypothesis), warnings=()
    )


def test_the_words_of_a_small_drop_are_true_beside_another_rule_that_fails_the_task():
    """They speak of the threshold: the acceptance length can fail what the threshold passes."""
    result, pairs, hypothesis, reference = _case(4096, 90, 50)
    passed = classic.judge(result, reference, hypothesis, pairs)
    entry = AcceptanceLength(ref_al=2.0, min_al=1.9)
    told = Acceptance(answers=result.scored, length=1.2, all_steps=1.2, per_answer=1.2)
    verdict = judge_acceptance(passed, result, told, "TestMine::test_eagle", entry)
    assert verdict.outcome is VerdictOutcome.FAIL
    [line] = [line for line in verdict.warnings if line.startswith("small_drop: ")]
    assert "pass" not in line
    assert verdict.evaluated >= verdict.threshold
    assert line.endswith(f"the value is within the classic threshold of {verdict.threshold:.3f}")


def test_the_bound_says_which_drop_is_excluded():
    result, pairs, hypothesis, reference = _case(4096, 70, 70)
    told = classic.judge(result, reference, hypothesis, pairs).paired
    assert -0.6 < told.lower < -0.3
    assert told.margin == pytest.approx(1.817324, abs=1e-6)


@pytest.mark.parametrize(
    ("down", "up", "margin", "outcome"),
    [
        (60, 60, 1.0, VerdictOutcome.PASS),
        (60, 60, 0.2, VerdictOutcome.INCONCLUSIVE),
        (200, 60, 1.0, VerdictOutcome.FAIL),
        (100, 60, 1.0, VerdictOutcome.INCONCLUSIVE),
        (0, 0, 1.0, VerdictOutcome.PASS),
    ],
)
def test_non_inferior_means_that_a_drop_of_the_margin_is_excluded(down, up, margin, outcome):
    result, pairs, hypothesis, reference = _case(4096, down, up)
    verdict = noninferiority.judge(result, reference, hypothesis, pairs, margin=margin)
    assert (verdict.outcome, verdict.rule) == (outcome, "noninferiority")
    assert verdict.paired.noninferior == (outcome is VerdictOutcome.PASS)


def test_a_drop_on_few_prompts_that_another_build_explains_is_no_failure():
    """64 answers to each of 30 prompts: 9 are lost for good and 6 won."""
    before = [1.0] * 18 + [0.0] * 12
    after = [0.0] * 9 + [1.0] * 9 + [1.0] * 6 + [0.0] * 6
    pairs = pair([before] * 64, [after] * 64, lo=0.0, hi=1.0, higher_is_better=True)
    result, _, hypothesis, reference = _case(30, 9, 6)
    verdict = noninferiority.judge(result, reference, hypothesis, pairs, margin=5.0)
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert "unproven_drop: a drop of 5 points is shown on these prompts" in verdict.reasons[0]
    assert verdict.paired.upper < -5.0
    lost = pair([before] * 64, [[0.0] * 30] * 64, lo=0.0, hi=1.0, higher_is_better=True)
    failed = noninferiority.judge(result, reference, hypothesis, lost, margin=5.0)
    assert failed.outcome is VerdictOutcome.FAIL


def test_identical_answers_exclude_only_what_their_number_can():
    result, pairs, hypothesis, reference = _case(200, 0, 0)
    assert (
        noninferiority.judge(result, reference, hypothesis, pairs, margin=1.0).outcome
        is VerdictOutcome.INCONCLUSIVE
    )
    assert (
        noninferiority.judge(result, reference, hypothesis, pairs, margin=1.4).outcome
        is VerdictOutcome.PASS
    )


def test_missing_answers_leave_it_open_and_too_many_say_so():
    result, pairs, hypothesis, reference = _case(4096, 70, 70, missing=100)
    for verdict in (
        paired.judge(result, reference, hypothesis, pairs),
        noninferiority.judge(result, reference, hypothesis, pairs),
    ):
        assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
        assert "too_many_missing" in verdict.reasons[0]


def test_without_pairs_there_is_no_paired_verdict():
    result, _, hypothesis, reference = _case(100, 0, 0)
    for rule in (paired, noninferiority):
        verdict = rule.judge(result, reference, hypothesis, None)
        assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
        assert "no_pairs" in verdict.reasons[-1]
    verdict = tokens.judge(result, reference, hypothesis, None)
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert verdict.reasons == ("no_answers: no prompt has an answer of both sides",)


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_that_is_none_is_refused(margin):
    result, pairs, hypothesis, reference = _case(100, 0, 0)
    for rule in (paired, noninferiority):
        with pytest.raises(PlanError, match="margin: must be above 0"):
            rule.judge(result, reference, hypothesis, pairs, margin=margin)


def _several_runs(reference, candidate):
    n, missing = len(candidate), sum(map(math.isnan, candidate))
    result, *_ = _case(n, 0, 0, missing)
    return result, pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)


@pytest.mark.parametrize(
    ("lost", "missing", "outcome", "reason"),
    [
        (0, 0, VerdictOutcome.PASS, None),
        (3, 0, VerdictOutcome.PASS, None),
        (
            4,
            0,
            VerdictOutcome.FAIL,
            "anchors_lost: this run lost 4, the last reference run 0, of the 200 prompts",
        ),
        (3, 2, VerdictOutcome.INCONCLUSIVE, "missing_results"),
        (4, 2, VerdictOutcome.FAIL, "anchors_lost"),
        (0, 6, VerdictOutcome.INCONCLUSIVE, "too_many_missing"),
    ],
)
def test_the_anchors_rule_fails_when_what_was_always_right_is_lost(lost, missing, outcome, reason):
    candidate = [0.0] * lost + [1.0] * (200 - lost - missing) + [math.nan] * missing
    result, pairs = _several_runs([[1.0] * 200] * 3, candidate)
    verdict = anchors.judge(
        result, replace(REFERENCE, value=100.0), Hypothesis(num_samples=200), pairs
    )
    assert (verdict.outcome, verdict.rule) == (outcome, "anchors")
    assert (verdict.paired.anchors.anchors, verdict.paired.anchors.candidate_lost) == (200, lost)
    assert [line.startswith(reason or "") for line in verdict.reasons] == [True] * (
        reason is not None
    )


def test_the_anchors_rule_needs_anchors_and_pairs():
    result, pairs = _several_runs([[1.0] * 200], [1.0] * 200)
    verdict = anchors.judge(result, REFERENCE, Hypothesis(num_samples=200), pairs)
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert verdict.reasons[0].startswith("few_anchors")
    alone = anchors.judge(result, REFERENCE, Hypothesis(num_samples=200), None)
    assert (alone.outcome, alone.reasons) == (
        VerdictOutcome.INCONCLUSIVE,
        ("no_pairs: there is no score to pair with",),
    )
    assert alone.rule == "anchors"


@pytest.mark.parametrize("rule", [classic, paired, noninferiority, anchors])
def test_every_rule_with_pairs_says_that_runs_differ_as_a_whole(rule):
    runs = [[1.0] * 200, [1.0] * 200, [0.0] * 12 + [1.0] * 188]
    result, pairs = _several_runs(runs, [1.0] * 200)
    verdict = rule.judge(result, REFERENCE, Hypothesis(num_samples=200), pairs)
    assert any(line.startswith("run_effect: ") for line in verdict.warnings)
    assert verdict.paired.inflation == pytest.approx(math.sqrt(12.0))
    assert verdict.paired.cochran_q == pytest.approx(24.0)


def test_the_warning_of_a_run_effect_is_bound_to_its_p_alone():
    runs = [[1.0] * 200, [1.0] * 200, [0.0] * 12 + [1.0] * 188]
    result, pairs = _several_runs(runs, [1.0] * 200)
    found = compare(pairs, result, margin=1.0, alpha=0.05, max_missing=0.01)
    [line] = warnings(replace(found, inflation=2.0, cochran_p=0.001))
    assert line.endswith("Q 24.00, p 0.001); the paired comparison multiplies every error by 2.00")
    assert warnings(replace(found, inflation=2.0, cochran_p=0.0011)) == ()
    assert warnings(replace(found, cochran_p=None)) == ()
    assert warnings(replace(found, inflation=1.0)) == ()


def test_a_run_effect_that_one_healthy_run_in_twenty_shows_widens_without_a_warning():
    runs = [[1.0] * 200, [0.0] * 2 + [1.0] * 198, [1.0] * 2 + [0.0] * 9 + [1.0] * 189]
    result, pairs = _several_runs(runs, [1.0] * 200)
    verdict = paired.judge(result, REFERENCE, Hypothesis(num_samples=200), pairs)
    assert 0.001 < verdict.paired.cochran_p < 0.05
    assert not any(line.startswith("run_effect: ") for line in verdict.warnings)
    _, shown = describe_change(verdict, result.metric)
    assert f"errors times {verdict.paired.inflation:.2f}, since the runs" in shown


@pytest.mark.parametrize("rule", [paired, noninferiority])
def test_a_handful_of_prompts_is_no_test(rule):
    result, pairs = _several_runs([[1.0] * 9], [0.0] * 9)
    verdict = rule.judge(result, REFERENCE, Hypothesis(num_samples=9), pairs)
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert verdict.reasons[0].startswith("too_few_pairs")
