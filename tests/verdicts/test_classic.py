from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.schema import (
    AccuracySpec,
    Hypothesis,
    Metric,
    Reference,
    TaskResult,
    VerdictOutcome,
)
from serve_eval.verdicts.rules.classic import judge

REFERENCE = Reference(task="mmlu", model="m", spec=AccuracySpec(), value=68.17)
HYPOTHESIS = Hypothesis(num_samples=4096)


def _result(right: int, failed: int = 0, planned: int = 4104) -> TaskResult:
    scored = planned - failed
    return TaskResult(
        task="mmlu",
        metric=Metric(),
        planned=planned,
        scored=scored,
        failed=failed,
        truncated=0,
        stopped_in_reasoning=0,
        outcomes={"correct": right, "wrong": scored - right},
        failures={"timeout": failed} if failed else {},
        value=100 * right / scored if scored else None,
        bounds=(100 * right / planned, 100 * (right + failed) / planned),
        parts={},
        breakdown={},
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
def test_a_verdict_is_given_only_when_both_bounds_give_it(
    right: int, failed: int, outcome: VerdictOutcome
) -> None:
    verdict = judge(_result(right, failed), REFERENCE, HYPOTHESIS)
    assert verdict.outcome is outcome
    assert verdict.threshold == pytest.approx(66.352676, abs=1e-6)
    assert verdict.theta == pytest.approx(2.747193, abs=1e-6)
    assert bool(verdict.reasons) == (outcome not in (VerdictOutcome.PASS, VerdictOutcome.FAIL))


def test_the_formula_uses_the_registered_n_and_not_the_number_asked() -> None:
    assert judge(_result(2800), REFERENCE, HYPOTHESIS).num_samples == 4096


def test_too_many_missing_says_so_even_when_the_failure_would_be_certain() -> None:
    verdict = judge(_result(1000, 200), REFERENCE, HYPOTHESIS)
    assert verdict.reasons[0].startswith("too_many_missing: 200 of 4104")
    assert "even if every missing answer is right" in verdict.reasons[1]


@pytest.mark.parametrize("higher", [True, False])
def test_57_of_100_passes_a_threshold_of_57_and_a_worse_count_fails(higher: bool) -> None:
    reference = replace(REFERENCE, threshold=57.0, higher_is_better=higher)
    for right, outcome in ((57, VerdictOutcome.PASS), (56 if higher else 58, VerdictOutcome.FAIL)):
        verdict = judge(_result(right, 0, 100), reference, Hypothesis(num_samples=100))
        assert verdict.outcome is outcome


@pytest.mark.parametrize("higher", [True, False])
def test_a_value_on_a_threshold_is_compared_by_the_sum_of_its_scores_before_the_scale(
    higher: bool,
) -> None:
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
def test_the_worst_case_of_missing_answers_on_the_threshold_passes(
    failed: int, outcome: str
) -> None:
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
def test_a_threshold_that_no_value_is_beyond_is_said(
    reference: dict[str, float], n: int, higher: bool, what: str | None
) -> None:
    known = replace(REFERENCE, higher_is_better=higher, **reference)  # type: ignore[arg-type]
    warnings = judge(_result(50, 0, 100), known, Hypothesis(num_samples=n)).warnings
    told = [line for line in warnings if " fails" in line and "task" in line]
    assert [line.endswith(f"{what}: {line.rsplit(': ', 1)[1]}") for line in told] == (
        [] if what is None else [True]
    )


def test_an_explicit_threshold_replaces_the_computed_one_and_hides_theta() -> None:
    verdict = judge(_result(2800), replace(REFERENCE, threshold=94.0), HYPOTHESIS)
    assert (verdict.outcome, verdict.threshold, verdict.theta) == (VerdictOutcome.FAIL, 94.0, None)
    assert any("set in the reference file" in warning for warning in verdict.warnings)


def test_a_reference_of_an_older_file_is_named() -> None:
    old = replace(REFERENCE, old=True, source="v1.yaml")
    warnings = judge(_result(2800), old, HYPOTHESIS).warnings
    assert [line for line in warnings if "older file of its source: v1.yaml" in line]
    assert judge(_result(2800), replace(old, old=False), HYPOTHESIS).warnings == ()


def test_a_reference_of_0_never_fails_and_says_so() -> None:
    verdict = judge(_result(0), replace(REFERENCE, value=0.0), HYPOTHESIS)
    assert verdict.outcome is VerdictOutcome.PASS
    assert any("never fails" in warning for warning in verdict.warnings)


def test_lower_is_better_mirrors_the_rule() -> None:
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


def test_an_unbounded_metric_with_a_missing_answer_is_inconclusive() -> None:
    unbounded = replace(_result(2800, 1), bounds=None)
    verdict = judge(unbounded, REFERENCE, HYPOTHESIS)
    assert verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert "no bounds" in verdict.reasons[0]


def test_a_passkey_row_tolerates_nothing() -> None:
    strict = Hypothesis(num_samples=20, sigma=0.0, alpha=0.5)
    reference = replace(REFERENCE, value=99.0)
    assert judge(_result(20, 0, 20), reference, strict).outcome is VerdictOutcome.PASS
    assert judge(_result(19, 0, 20), reference, strict).outcome is VerdictOutcome.FAIL
