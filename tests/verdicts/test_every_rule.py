"""Test that every rule passes and fails at its limits, as often as planned."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest

from serve_eval.plugins import registry
from serve_eval.plugins.values import VERDICTS, load_verdict_rule
from serve_eval.schema import (
    AccuracySpec,
    Hypothesis,
    Metric,
    Reference,
    VerdictOutcome,
)
from serve_eval.stats.pairs import pair
from serve_eval.stats.planning import (
    classic_power,
    compute_fail_power,
    compute_paired_power,
    noninferiority_power,
)
from serve_eval.verdicts.rules import classic, noninferiority, paired
from serve_eval.verdicts.rules.classic import judge
from tests.made_results import make_result

PROMPTS = 4000
"""The reference has the answers of all of them right."""


class Limit(NamedTuple):
    passes: int
    fails: int


LIMITS = {
    "anchors": Limit(3, 4),
    "classic": Limit(73, 74),
    "noninferiority": Limit(29, 51),
    "paired": Limit(59, 60),
    "tokens": Limit(0, 1),
}
"""By rule, with its default options: the most lost answers that pass, and the fewest that fail."""
NAMES = registry.list_shipped(VERDICTS)


def _judge(name, lost, *, answered=True):
    rule = load_verdict_rule(name)
    after = [0.0] * lost + [1.0] * (PROMPTS - lost)
    value = 100.0 * (PROMPTS - lost) / PROMPTS
    result = make_result(
        PROMPTS,
        value if answered else None,
        scored=PROMPTS if answered else 0,
        failed=0 if answered else PROMPTS,
        bounds=(value, value) if answered else (0.0, 100.0),
    )
    before = [[1.0] * PROMPTS] * rule.min_reference_runs
    pairs = pair(before, [after], lo=0.0, hi=1.0, higher_is_better=True) if answered else None
    reference = Reference(task="t", model="m", spec=AccuracySpec(), value=100.0)
    return rule.judge(result, reference, Hypothesis(num_samples=PROMPTS), pairs)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_passes_and_fails_at_the_limits_that_are_known(name):
    assert name in LIMITS, f"add a line for {name!r} to LIMITS of tests/verdicts/test_every_rule.py"
    limit = LIMITS[name]
    passed, failed = _judge(name, limit.passes), _judge(name, limit.fails)
    assert (passed.rule, failed.rule) == (name, name)
    assert (passed.outcome, failed.outcome) == (VerdictOutcome.PASS, VerdictOutcome.FAIL), (
        f"{name} with {limit.passes} and {limit.fails} lost answers: mend the rule or LIMITS"
    )
    assert _judge(name, limit.passes + 1).outcome is not VerdictOutcome.PASS
    assert _judge(name, limit.fails - 1).outcome is not VerdictOutcome.FAIL


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_passes_what_was_not_answered(name):
    assert _judge(name, 0, answered=False).outcome is not VerdictOutcome.PASS


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_says_what_it_is(name):
    assert 20 < len(registry.summary(VERDICTS, name)) <= 140


def test_no_limit_is_of_a_rule_that_is_gone():
    assert LIMITS.keys() - set(NAMES) == set()


REFERENCE = Reference(task="mmlu", model="m", spec=AccuracySpec(), value=68.17)
HYPOTHESIS = Hypothesis(num_samples=4096)


def _result(right, failed=0, planned=4104):
    scored = planned - failed
    return make_result(
        planned,
        100 * right / scored if scored else None,
        task="mmlu",
        scored=scored,
        failed=failed,
        outcomes={"correct": right, "wrong": scored - right},
        failures={"timeout": failed} if failed else {},
        bounds=(100 * right / planned, 100 * (right + failed) / planned),
    )


@pytest.mark.parametrize(
    ("right", "failed", "outcome"),
    [
        (2724, 0, VerdictOutcome.PASS),  # 66.374 versus 66.353
        (2723, 0, VerdictOutcome.FAIL),  # 66.350
        (2800, 0, VerdictOutcome.PASS),
        (2800, 40, VerdictOutcome.PASS),  # 68.226 to 69.201
        (2700, 40, VerdictOutcome.INCONCLUSIVE),  # 65.789 to 66.764
        (2600, 40, VerdictOutcome.FAIL),
        (2800, 83, VerdictOutcome.INCONCLUSIVE),  # 2.02 % are missing
        (2600, 83, VerdictOutcome.INCONCLUSIVE),
        (0, 4104, VerdictOutcome.ERROR),
    ],
)
def test_a_verdict_is_given_only_when_both_bounds_give_it(right, failed, outcome):
    verdict = judge(_result(right, failed), REFERENCE, HYPOTHESIS)
    assert verdict.outcome is outcome
    assert verdict.threshold == pytest.approx(66.352676, abs=1e-6)
    assert verdict.theta == pytest.approx(2.747193, abs=1e-6)
    assert bool(verdict.reasons) == (outcome not in (VerdictOutcome.PASS, VerdictOutcome.FAIL))


def test_the_formula_uses_the_registered_n_and_not_the_number_asked():
    assert judge(_result(2800), REFERENCE, HYPOTHESIS).num_samples == 4096


def test_too_many_missing_says_so_even_when_the_failure_would_be_certain():
    verdict = judge(_result(1000, 200), REFERENCE, HYPOTHESIS)
    assert verdict.reasons[0].startswith("too_many_missing: 200 of 4104")
    assert "even if every missing answer is right" in verdict.reasons[1]


@pytest.mark.parametrize("higher", [True, False])
def test_57_of_100_passes_a_threshold_of_57_and_a_worse_count_fails(higher):
    reference = replace(REFERENCE, threshold=57.0, higher_is_better=higher)
    for right, outcome in ((57, VerdictOutcome.PASS), (56 if higher else 58, VerdictOutcome.FAIL)):
        verdict = judge(_result(right, 0, 100), reference, Hypothesis(num_samples=100))
        assert verdict.outcome is outcome


@pytest.mark.parametrize("higher", [True, False])
def test_a_value_on_a_threshold_is_compared_by_the_sum_of_its_scores_before_the_scale(
    higher,
):
    """Three scores that sum to 9.383099398323: 16 times their mean has one digit more."""
    value = 9.383099398323 / 3 * 16.0
    assert value != 50.043196791056
    result = replace(
        _result(3, 0, 3), metric=Metric(scale=16.0), value=value, bounds=(value, value)
    )
    reference = replace(REFERENCE, threshold=50.043196791056, higher_is_better=higher)
    verdict = judge(result, reference, Hypothesis(num_samples=3))
    assert verdict.outcome is VerdictOutcome.PASS


@pytest.mark.parametrize(("failed", "outcome"), [(0, "PASS"), (1, "PASS"), (2, "PASS")])
def test_the_worst_case_of_missing_answers_on_the_threshold_passes(failed, outcome):
    reference = replace(REFERENCE, threshold=57.0)
    verdict = judge(_result(57, failed, 100), reference, Hypothesis(num_samples=100))
    assert verdict.outcome.value == outcome


@pytest.mark.parametrize(
    ("reference", "n", "higher", "what"),
    [
        ({"value": 59.3}, 3, True, "accuracy is 0 or more, so the task never fails"),
        ({"value": 40.7}, 3, False, "accuracy is 100 or less, so the task never fails"),
        ({"value": 59.3, "threshold": 101.0}, 100, True, "100 or less, so the task always fails"),
        ({"value": 40.7, "threshold": -1.0}, 100, False, "0 or more, so the task always fails"),
        ({"value": 59.3}, 100, True, None),
        ({"value": 0.0}, 100, False, None),
    ],
)
def test_a_threshold_that_no_value_is_beyond_is_said(reference, n, higher, what):
    known = replace(REFERENCE, higher_is_better=higher, **reference)
    warnings = judge(_result(50, 0, 100), known, Hypothesis(num_samples=n)).warnings
    told = [line for line in warnings if " fails" in line and "task" in line]
    assert [line.endswith(f"{what}: {line.rsplit(': ', 1)[1]}") for line in told] == (
        [] if what is None else [True]
    )


def test_an_explicit_threshold_replaces_the_computed_one_and_hides_theta():
    verdict = judge(_result(2800), replace(REFERENCE, threshold=94.0), HYPOTHESIS)
    assert (verdict.outcome, verdict.threshold, verdict.theta) == (VerdictOutcome.FAIL, 94.0, None)
    assert any("set in the reference file" in warning for warning in verdict.warnings)


def test_a_reference_of_an_older_file_is_named():
    old = replace(REFERENCE, old=True, source="v1.yaml")
    warnings = judge(_result(2800), old, HYPOTHESIS).warnings
    assert [line for line in warnings if "older file of its source: v1.yaml" in line]
    assert judge(_result(2800), replace(old, old=False), HYPOTHESIS).warnings == ()


def test_a_reference_of_0_never_fails_and_says_so():
    verdict = judge(_result(0), replace(REFERENCE, value=0.0), HYPOTHESIS)
    assert verdict.outcome is VerdictOutcome.PASS
    assert any("never fails" in warning for warning in verdict.warnings)


def test_lower_is_better_mirrors_the_rule():
    wer = replace(
        _result(2800),
        metric=Metric(name="wer", higher_is_better=False),
        value=6.0,
        bounds=(6.0, 6.0),
    )
    reference = replace(REFERENCE, value=6.2)
    assert judge(wer, reference, Hypothesis(num_samples=1842)).outcome is VerdictOutcome.PASS
    worse = replace(wer, value=9.0, bounds=(9.0, 9.0))
    assert judge(worse, reference, Hypothesis(num_samples=1842)).outcome is VerdictOutcome.FAIL


def test_an_unbounded_metric_with_a_missing_answer_is_inconclusive():
    unbounded = replace(_result(2800, 1), bounds=None)
    verdict = judge(unbounded, REFERENCE, HYPOTHESIS)
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert "no bounds" in verdict.reasons[0]


def test_a_passkey_row_tolerates_nothing():
    strict = Hypothesis(num_samples=20, sigma=0.0, alpha=0.5)
    reference = replace(REFERENCE, value=99.0)
    assert judge(_result(20, 0, 20), reference, strict).outcome is VerdictOutcome.PASS
    assert judge(_result(19, 0, 20), reference, strict).outcome is VerdictOutcome.FAIL


UNLIKELY = 1e-5
"""Chance of an outcome that the sums of this test leave out."""


def _outcomes(n, drop, flips):
    """Yield the chance of every number of prompts that turn wrong and that turn right."""
    turn_wrong, turn_right = flips / 2 + drop, flips / 2
    for down in range(n + 1):
        for up in range(n - down + 1):
            ways = math.comb(n, down) * math.comb(n - down, up)
            chance = ways * turn_wrong**down * turn_right**up
            chance *= (1 - turn_wrong - turn_right) ** (n - down - up)
            if chance > UNLIKELY:
                yield chance, down, up


def _asked(n, down, up):
    before = [1.0] * (n - up) + [0.0] * up
    after = [0.0] * down + [1.0] * (n - down)
    value = 100 * sum(after) / n
    result = make_result(n, value)
    reference = Reference(task="t", model="m", spec=AccuracySpec(), value=100 * sum(before) / n)
    pairs = pair([before], [after], lo=0.0, hi=1.0, higher_is_better=True)
    return result, reference, Hypothesis(num_samples=n), pairs


def _told(verdict):
    finding = verdict.paired.finding if verdict.paired else ""
    return [
        f"{verdict.rule} {verdict.outcome}",
        *(["proven"] if verdict.rule == "paired" and finding in ("FAIL", "SMALL_DROP") else []),
    ]


@pytest.mark.parametrize(
    ("n", "drop", "flips", "margin"),
    [
        (121, 0.05, 0.008, None),
        (50, 0.1, 0.01, 0.12),
        (60, 0.1, 0.02, None),
        (40, 0.0, 0.1, None),
        (9, 0.5, 0.0, None),
        (10, 0.5, 0.0, 0.6),
        (20, 0.1, 0.0, 1.0),
    ],
)
def test_the_planned_power_is_the_chance_of_the_verdict(n, drop, flips, margin):
    chances = Counter()
    options = {} if margin is None else {"margin": 100 * margin}
    for chance, down, up in _outcomes(n, drop, flips):
        asked = _asked(n, down, up)
        for rule, more in ((classic, {}), (paired, options), (noninferiority, {"margin": 4.0})):
            for word in _told(rule.judge(*asked, **more)):
                chances[word] += chance
    close = {"abs": 3e-3}
    assert classic_power(drop, n, flips, 0.05) == pytest.approx(chances["classic FAIL"], **close)
    failed = compute_fail_power(drop, n, flips, 0.05, margin)
    assert failed == pytest.approx(chances["paired FAIL"], **close)
    if n >= 10:  # fewer are never judged
        proven = compute_paired_power(drop, n, flips, 0.05)
        assert proven == pytest.approx(chances["proven"], **close)
        excluded = noninferiority_power(0.04, n, flips, 0.05, drop=drop)
        assert excluded == pytest.approx(chances["noninferiority PASS"], **close)
