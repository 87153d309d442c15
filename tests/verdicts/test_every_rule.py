"""Every verdict rule passes and fails at the limits of LIMITS, where a new rule needs one line."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from serve_eval.plugins import registry
from serve_eval.plugins.values import VERDICTS, load_verdict_rule
from serve_eval.schema import (
    AccuracySpec,
    Hypothesis,
    Metric,
    Reference,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.pairs import pair

PROMPTS = 4000
"""The reference has the answers of all of them right."""


class Limit(NamedTuple):
    passes: int
    fails: int


LIMITS: dict[str, Limit] = {
    "anchors": Limit(3, 4),
    "classic": Limit(73, 74),
    "noninferiority": Limit(29, 51),
    "paired": Limit(59, 60),
    "tokens": Limit(0, 1),
}
"""By rule, with its default options: the most lost answers that pass, and the fewest that fail."""
NAMES = registry.list_shipped(VERDICTS)


def _judge(name: str, lost: int, *, answered: bool = True) -> Verdict:
    rule = load_verdict_rule(name)
    after = [0.0] * lost + [1.0] * (PROMPTS - lost)
    value = 100.0 * (PROMPTS - lost) / PROMPTS
    result = TaskResult(
        task="t",
        metric=Metric(),
        planned=PROMPTS,
        scored=PROMPTS if answered else 0,
        failed=0 if answered else PROMPTS,
        truncated=0,
        stopped_in_reasoning=0,
        outcomes={},
        failures={},
        value=value if answered else None,
        bounds=(value, value) if answered else (0.0, 100.0),
        parts={},
        breakdown={},
    )
    before = [[1.0] * PROMPTS] * rule.min_reference_runs
    pairs = pair(before, [after], lo=0.0, hi=1.0, higher_is_better=True) if answered else None
    reference = Reference(task="t", model="m", spec=AccuracySpec(), value=100.0)
    return rule.judge(result, reference, Hypothesis(num_samples=PROMPTS), pairs)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_passes_and_fails_at_the_limits_that_are_known(name: str) -> None:
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
def test_no_rule_passes_what_was_not_answered(name: str) -> None:
    assert _judge(name, 0, answered=False).outcome is not VerdictOutcome.PASS


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_says_what_it_is(name: str) -> None:
    assert 20 < len(registry.summary(VERDICTS, name)) <= 140


def test_no_limit_is_of_a_rule_that_is_gone() -> None:
    assert LIMITS.keys() - set(NAMES) == set()
