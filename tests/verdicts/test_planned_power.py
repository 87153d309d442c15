"""Each planned power is the chance of the verdict that the rule itself gives, over all outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import pytest

from serve_eval.schema import (
    AccuracySpec,
    Hypothesis,
    Metric,
    Reference,
    TaskResult,
    Verdict,
)
from serve_eval.stats.pairs import Pairs, pair
from serve_eval.stats.planning import (
    classic_power,
    compute_fail_power,
    compute_paired_power,
    noninferiority_power,
)
from serve_eval.verdicts.rules import classic, noninferiority, paired

UNLIKELY = 1e-5
"""Chance of an outcome that the sums of this test leave out."""


def _outcomes(n: int, drop: float, flips: float) -> Iterator[tuple[float, int, int]]:
    """Yield the chance of every number of prompts that turn wrong and that turn right."""
    turn_wrong, turn_right = flips / 2 + drop, flips / 2
    for down in range(n + 1):
        for up in range(n - down + 1):
            ways = math.comb(n, down) * math.comb(n - down, up)
            chance = ways * turn_wrong**down * turn_right**up
            chance *= (1 - turn_wrong - turn_right) ** (n - down - up)
            if chance > UNLIKELY:
                yield chance, down, up


def _asked(n: int, down: int, up: int) -> tuple[TaskResult, Reference, Hypothesis, Pairs]:
    before = [1.0] * (n - up) + [0.0] * up
    after = [0.0] * down + [1.0] * (n - down)
    value = 100 * sum(after) / n
    result = TaskResult(
        task="t",
        metric=Metric(),
        planned=n,
        scored=n,
        failed=0,
        truncated=0,
        stopped_in_reasoning=0,
        outcomes={},
        failures={},
        value=value,
        bounds=(value, value),
        parts={},
        breakdown={},
    )
    reference = Reference(task="t", model="m", spec=AccuracySpec(), value=100 * sum(before) / n)
    pairs = pair([before], [after], lo=0.0, hi=1.0, higher_is_better=True)
    return result, reference, Hypothesis(num_samples=n), pairs


def _told(verdict: Verdict) -> list[str]:
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
def test_the_planned_power_is_the_chance_of_the_verdict(
    n: int, drop: float, flips: float, margin: float | None
) -> None:
    chances: Counter[str] = Counter()
    options = {} if margin is None else {"margin": 100 * margin}
    for chance, down, up in _outcomes(n, drop, flips):
        asked = _asked(n, down, up)
        for rule, more in ((classic, {}), (paired, options), (noninferiority, {"margin": 4.0})):
            for word in _told(rule.judge(*asked, **more)):  # type: ignore[attr-defined]
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
