"""Test the verdicts of runs that stopped early, and of those whose looks did not stop them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_eval.schema import (
    AccuracySpec,
    EarlyStop,
    Hypothesis,
    Metric,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.pairs import Pairs, pair
from serve_eval.verdicts.rules import _classic
from serve_eval.verdicts.rules._classic import judge_after_looks, judge_decided

N = 200
REFERENCE = Reference(task="mmlu", model="m", spec=AccuracySpec(), value=70.0)
HYPOTHESIS = Hypothesis(num_samples=N)
RESULT = TaskResult(
    task="mmlu",
    metric=Metric(),
    planned=N,
    scored=N,
    failed=0,
    truncated=0,
    stopped_in_reasoning=0,
    outcomes={},
    failures={},
    value=69.0,
    bounds=(69.0, 69.0),
    parts={},
    breakdown={},
)
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
def test_a_task_that_stopped_has_its_decision_no_value_and_a_warning(
    early: EarlyStop, outcome: VerdictOutcome, promise: str
) -> None:
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

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def judge(
        self,
        result: TaskResult,
        reference: Reference,
        hypothesis: Hypothesis,
        pairs: Pairs | None,
        **more: float,
    ) -> Verdict:
        self.asked.append((result, reference, hypothesis, pairs, more))
        base = _classic.frame(result, reference, hypothesis)
        return replace(
            base, outcome=VerdictOutcome.FAIL, rule="ours", warnings=(*base.warnings, "its own")
        )


def judge_at_the_rest(
    reference: Reference, *, margin: float | None = None, num_samples: int = N
) -> tuple[Rule, Verdict]:
    rule, hypothesis = Rule(), replace(HYPOTHESIS, num_samples=num_samples)
    pairs = pair([[1.0] * N], [[1.0] * N], lo=0.0, hi=1.0, higher_is_better=True)
    verdict = judge_after_looks(rule.judge, RESULT, reference, hypothesis, pairs, margin=margin)
    [(result, told, left, same, _)] = rule.asked
    assert (result, told, same) == (RESULT, reference, pairs)
    assert left == replace(hypothesis, alpha=0.025)
    return rule, verdict


def test_after_looks_the_rule_judges_at_the_rest_of_alpha_with_the_margin_of_the_whole() -> None:
    rule, verdict = judge_at_the_rest(REFERENCE)
    whole = _classic.frame(RESULT, REFERENCE, HYPOTHESIS)
    assert whole.threshold is not None
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
def test_a_margin_of_the_rule_or_of_0_is_not_replaced(
    reference: Reference, margin: float | None
) -> None:
    rule, _ = judge_at_the_rest(reference, margin=margin)
    assert rule.asked[0][-1] == {}


def test_the_warnings_are_those_of_the_whole_alpha_and_of_the_rule() -> None:
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
