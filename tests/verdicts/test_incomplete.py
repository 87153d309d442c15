"""Test verdicts of runs that stopped early or lost answers."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.schema import (
    AccuracySpec,
    EarlyStop,
    Hypothesis,
    Metric,
    Outcome,
    Reference,
    RepairedPolicy,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.pairs import pair
from serve_eval.verdicts import many_tests, repaired
from serve_eval.verdicts.rules import _classic, classic, noninferiority, paired
from serve_eval.verdicts.rules._classic import judge_after_looks, judge_decided
from serve_eval.verdicts.validity import warn_of_stopped
from tests.made_results import make_result

N = 200
REFERENCE = Reference(task="mmlu", model="m", spec=AccuracySpec(), value=70.0)
HYPOTHESIS = Hypothesis(num_samples=N)
RESULT = make_result(N, 69.0, task="mmlu")
EARLY = EarlyStop(
    eps=0.01,
    order_seed=3,
    paired=False,
    planned=N,
    looked_at=80,
    missing=1,
    stopped=True,
    decision="PASS",
    estimate=71.0,
    saved=120,
    log_wealth_pass=6.0,
    log_wealth_fail=-1.0,
)


@pytest.mark.parametrize(
    ("early", "outcome", "promise"),
    [
        (
            EARLY,
            VerdictOutcome.PASS,
            "the verdict differs from that of all samples with a probability of at most 0.01;",
        ),
        (
            replace(EARLY, rule="paired", paired=True, alpha=0.025, margin=2.5),
            VerdictOutcome.PASS,
            "a drop of 2.5 points is excluded at 97.5% (the looks use alpha 0.025 of 0.05);",
        ),
        (
            replace(EARLY, decision="FAIL", rule="noninferiority", alpha=0.025, margin=2.0),
            VerdictOutcome.FAIL,
            "a drop of 2 points is shown at 97.5% (the looks use alpha 0.025 of 0.05);",
        ),
    ],
)
def test_a_task_that_stopped_has_its_decision_no_value_and_a_warning(early, outcome, promise):
    old = replace(REFERENCE, threshold=66.0)
    verdict = judge_decided(RESULT, old, HYPOTHESIS, early)
    assert (verdict.outcome, verdict.rule) == (outcome, early.rule)
    assert (verdict.evaluated, verdict.early) == (None, early)
    assert (verdict.reference, verdict.threshold) == (70.0, 66.0)
    base, warning = verdict.warnings[:-1], verdict.warnings[-1]
    assert base == _classic.frame(RESULT, old, HYPOTHESIS).warnings != ()
    assert warning.startswith("stopped early after 80 of 200 samples in random order: ")
    assert promise in warning
    assert warning.endswith("an endpoint that degrades after the stop goes unnoticed")


class Rule:
    """A rule that keeps what it was asked, and says the warnings of its frame and one more."""

    def __init__(self):
        self.asked = []

    def judge(
        self,
        result,
        reference,
        hypothesis,
        pairs,
        **more,
    ):
        self.asked.append((result, reference, hypothesis, pairs, more))
        base = _classic.frame(result, reference, hypothesis)
        return replace(
            base, outcome=VerdictOutcome.FAIL, rule="ours", warnings=(*base.warnings, "its own")
        )


def judge_at_the_rest(reference, *, margin=None, num_samples=N):
    rule, hypothesis = Rule(), replace(HYPOTHESIS, num_samples=num_samples)
    pairs = pair([[1.0] * N], [[1.0] * N], lo=0.0, hi=1.0, higher_is_better=True)
    verdict = judge_after_looks(rule.judge, RESULT, reference, hypothesis, pairs, margin=margin)
    [(result, told, left, same, _)] = rule.asked
    assert (result, told, same) == (RESULT, reference, pairs)
    assert left == replace(hypothesis, alpha=0.025)
    return rule, verdict


def test_after_looks_the_rule_judges_at_the_rest_of_alpha_with_the_margin_of_the_whole():
    rule, verdict = judge_at_the_rest(REFERENCE)
    whole = _classic.frame(RESULT, REFERENCE, HYPOTHESIS)
    assert rule.asked[0][-1] == {"margin": pytest.approx(70.0 - whole.threshold)}
    assert (verdict.outcome, verdict.rule) == (VerdictOutcome.FAIL, "ours")
    assert (verdict.threshold, verdict.theta, verdict.alpha) == (
        whole.threshold,
        whole.theta,
        0.05,
    )


@pytest.mark.parametrize(
    ("reference", "margin"), [(REFERENCE, 3.0), (replace(REFERENCE, threshold=70.0), None)]
)
def test_a_margin_of_the_rule_or_of_0_is_not_replaced(reference, margin):
    rule, _ = judge_at_the_rest(reference, margin=margin)
    assert rule.asked[0][-1] == {}


def test_the_warnings_are_those_of_the_whole_alpha_and_of_the_rule():
    """With 100 prompts the least detectable drop, which has a warning, depends on alpha."""
    _, verdict = judge_at_the_rest(REFERENCE, num_samples=100)
    whole, left = (
        _classic.frame(RESULT, REFERENCE, Hypothesis(num_samples=100, alpha=alpha)).warnings
        for alpha in (0.05, 0.025)
    )
    assert len(whole) == len(left) == 1
    assert whole != left
    said = "judged at alpha 0.025: the looks for an early stop used the rest of 0.05"
    assert verdict.warnings == (*whole, "its own", said)


RESULT_CUT_OF_STOPPED = make_result(
    40,
    50.0,
    scored=10,
    truncated=2,
    outcomes={Outcome.CORRECT: 5, Outcome.WRONG: 5},
    cut={"max_tokens": 2},
    cut_value=70.0,
    cut_bounds=(70.0, 70.0),
)


@pytest.mark.parametrize("outcome", [VerdictOutcome.FAIL, VerdictOutcome.PASS])
def test_an_early_stop_has_the_bound_and_a_fail_says_so(outcome):
    found = warn_of_stopped(
        Verdict(task="t", outcome=outcome, evaluated=None, rule="classic"), RESULT_CUT_OF_STOPPED
    )
    assert found.outcome is outcome
    assert (found.cut.cut, found.cut.value, found.cut.outcome) == (2, 70.0, None)
    told = "cut_answers: the early stop counted the 2 cut answers as they are"
    assert [line[: len(told)] for line in found.warnings] == (
        [told] if outcome is VerdictOutcome.FAIL else []
    )


NONE_TRUSTED = RepairedPolicy(max_repaired=0.0)
PASS, FAIL = VerdictOutcome.PASS, VerdictOutcome.FAIL
UNDECIDED = VerdictOutcome.INCONCLUSIVE
RULES = {
    "classic": classic.judge,
    "paired": paired.judge,
    "noninferiority": partial(noninferiority.judge, margin=15.0),
}


def reference(value):
    return Reference(task="t", model="m", spec=AccuracySpec(), value=value)


def result_of(scores, lost=()):
    n = len(scores)
    value = 100.0 * math.fsum(scores) / n
    low = 100.0 * math.fsum(x for i, x in enumerate(scores) if i not in lost) / n
    return make_result(
        n,
        value,
        repaired=len(lost),
        doubted_bounds=(low, low + 100.0 * len(lost) / n) if lost else None,
    )


def judge(
    rule,
    before,
    came,
    lost,
    policy,
    p=None,
):
    result = result_of(came, lost)
    of_rule = partial(
        RULES[rule],
        reference=reference(100.0 * math.fsum(before) / len(before)),
        hypothesis=Hypothesis(num_samples=len(before)),
    )
    verdict = of_rule(result, pairs=pairs_of(before, came))
    if not lost:
        return verdict
    known = [math.nan if i in lost else x for i, x in enumerate(came)]
    most = min(1.0, 0.02 + len(lost) / len(came))
    bounded = partial(
        of_rule, repaired.as_bounded(result), pairs=pairs_of(before, known), max_missing=most
    )
    return repaired.settle(verdict, bounded, repaired.doubt_of(result, p), policy, result)


def pairs_of(before, after):
    if all(math.isnan(x) for x in after):
        return None
    return pair([list(before)], [list(after)], lo=0.0, hi=1.0, higher_is_better=True)


@settings(max_examples=40)
@given(
    rule=st.sampled_from(sorted(RULES)),
    before=st.lists(st.sampled_from([0.0, 1.0]), min_size=12, max_size=40),
    flips=st.sets(st.integers(0, 39), max_size=12),
    lost=st.sets(st.integers(0, 39), max_size=3),
)
def test_a_verdict_stands_only_if_every_answer_that_may_have_been_lost_gives_it(
    rule, before, flips, lost
):
    came = [1.0 - x if i in flips else x for i, x in enumerate(before)]
    gone = sorted(i for i in lost if i < len(before))
    settled = judge(rule, before, came, gone, NONE_TRUSTED).outcome
    possible = set()
    for answers in itertools.product((0.0, 1.0), repeat=len(gone)):
        first = list(came)
        for i, answer in zip(gone, answers, strict=True):
            first[i] = answer
        possible.add(judge(rule, before, first, (), NONE_TRUSTED).outcome)
    if settled in (PASS, FAIL):
        assert possible == {settled}
    elif judge(rule, before, came, (), NONE_TRUSTED).outcome in (PASS, FAIL):
        assert len(possible) > 1 or rule != "classic"


BEFORE = [1.0] * 60 + [0.0] * 40
"""The classic margin of 100 samples is 11.63 points."""


@pytest.mark.parametrize(
    ("lost", "policy", "outcome"),
    [
        (2, RepairedPolicy(), PASS),
        (3, RepairedPolicy(), UNDECIDED),
        (3, RepairedPolicy(max_repaired=0.03), PASS),
        (3, RepairedPolicy(max_repaired=0.029), UNDECIDED),
        (2, RepairedPolicy(max_repaired=0.0), UNDECIDED),
        (40, RepairedPolicy(repaired="trust"), PASS),
    ],
)
def test_a_quarter_of_the_margin_is_trusted_unless_the_plan_says_another_share(
    lost, policy, outcome
):
    came = [1.0] * 50 + [0.0] * 50  # 50 passes at 48.4, and 47 does not
    assert judge("classic", BEFORE, came, range(40 - lost, 40), policy).outcome is outcome


def test_the_trusted_share_is_a_quarter_of_each_rules_own_margin():
    result = result_of(BEFORE)
    of = partial(repaired.compute_trusted_share, result=result)
    plain = judge("classic", BEFORE, BEFORE, (), NONE_TRUSTED)
    assert of(plain) == pytest.approx(1.645 * 50.0 * math.sqrt(2.0 / 100.0) / 400.0, rel=1e-3)
    assert of(judge("noninferiority", BEFORE, BEFORE, (), NONE_TRUSTED)) == 0.0375
    assert of(plain, exact=True) == 0.0
    unbounded = replace(result, metric=Metric(lo=None, hi=None))
    assert repaired.compute_trusted_share(plain, unbounded) == 0.0
    summed = replace(result, aggregation="wer")
    assert repaired.compute_trusted_share(plain, summed) == 0.0


def test_a_dependence_on_the_reference_is_a_warning_and_ends_the_trust():
    came = [1.0] * 50 + [0.0] * 50
    for p, outcome in ((0.5, PASS), (0.01, UNDECIDED)):
        found = judge("classic", BEFORE, came, (38, 39), RepairedPolicy(), p)
        assert found.outcome is outcome
        assert (outcome is UNDECIDED) == any("repaired_depend" in one for one in found.warnings)


def test_a_value_without_bounds_is_undecided():
    result = replace(
        result_of([0.5] * 20, lost=(3,)), metric=Metric(lo=None, hi=None), doubted_bounds=None
    )
    of_rule = partial(
        classic.judge, reference=reference(40.0), hypothesis=Hypothesis(num_samples=20)
    )
    verdict = of_rule(replace(result, doubted_bounds=None))
    bounded = partial(of_rule, replace(result, bounds=None))
    settled = repaired.settle(verdict, bounded, repaired.doubt_of(result), RepairedPolicy(), result)
    assert (verdict.outcome, settled.outcome) == (PASS, UNDECIDED)
    assert "what was lost could change the verdict" in settled.reasons[0]


def test_a_rule_that_compares_answers_never_shows_equality_of_a_lost_one():
    verdict = judge("classic", BEFORE, BEFORE, (), NONE_TRUSTED)
    doubt = repaired.Doubt(count=1, planned=100, low=59.0, high=60.0)
    settle = partial(repaired.settle, verdict, lambda: verdict, doubt, RepairedPolicy())
    assert settle(result_of(BEFORE)).outcome is PASS
    assert settle(result_of(BEFORE), exact=True).outcome is UNDECIDED


def test_the_sentence_names_restarts_and_reasons_that_nobody_knows():
    doubt = repaired.Doubt(count=9, planned=100, restarted=4, unlisted=2)
    assert repaired.describe_doubt(doubt) == (
        "the first answers to 9 of 100 samples are unknown: 3 were lost in failed attempts and"
        " asked again, 4 were in flight when the server ended or restarted, 2 ended with an"
        " unknown finish_reason"
    )


@pytest.mark.parametrize(
    ("doubted", "means", "p"),
    [
        ([0, 1, 2], [0.0] * 3 + [1.0] * 9, 1 / 220),
        ([0, 12], [0.0] * 3 + [1.0] * 9, 0.25),  # a repeat of the first prompt counts once
        ([0, 1], [1.0] * 12, None),
        ([], [1.0] * 6 + [0.0] * 6, None),
        ([*range(12)], [1.0] * 6 + [0.0] * 6, None),
        ([0, 1], None, None),
        ([0, 1, 2, 3], [0.0, 0.25, 0.5, 0.75, *[1.0] * 20], 0.0001),
    ],
)
def test_dependence_is_tested_by_the_reference_alone(doubted, means, p):
    found = repaired.measure_dependence(doubted, means)
    assert found == (None if p is None else pytest.approx(p, rel=0.3, abs=1e-4))


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(PlanError, match="max_repaired"):
        repaired.read_policy({"max_repaired": share})


# Both rules


@pytest.mark.parametrize(("rule", "other"), [("classic", "paired"), ("paired", "classic")])
def test_a_verdict_says_what_the_other_rule_makes_of_it(rule, other):
    """Ten right prompts turned wrong: within the classic margin, and proven prompt by prompt."""
    came = [0.0] * 10 + BEFORE[10:]
    verdict = judge(rule, BEFORE, came, (), NONE_TRUSTED)
    told = many_tests.warn(many_tests.add_other(verdict, result_of(came), higher_is_better=True))
    assert {rule: verdict.outcome, other: told.other.outcome} == {"classic": PASS, "paired": FAIL}
    assert told.other.rule == other
    assert told.warnings[0].startswith(f"rules_disagree: {rule} says {verdict.outcome}, {other}")


def test_rules_that_agree_or_do_not_decide_are_no_warning():
    for came in (BEFORE, [0.0] * 4 + BEFORE[4:]):
        verdict = judge("classic", BEFORE, came, (), NONE_TRUSTED)
        told = many_tests.add_other(verdict, result_of(came), higher_is_better=True)
        assert many_tests.warn(told) == told
