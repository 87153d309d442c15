"""Test the least drop that a rule fails, which strict runs and JUnit's `detects` use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.report.task_line import compute_least_drop
from serve_eval.schema import Metric
from serve_eval.stats.planning import FLIP_RATE, compute_fail_power, compute_paired_power
from tests.report.summary.made import PAIRED, VERDICT


@pytest.mark.parametrize(("prompts", "margin"), [(121, 10.6), (500, 5.2), (500, 2.0)])
def test_the_paired_rule_fails_its_least_drop_in_80_of_100_runs(
    prompts: int, margin: float
) -> None:
    """A drop that is only proven passes with a warning, so it is not detected."""
    pairs = replace(PAIRED, pairs=prompts, margin=margin)
    least = compute_least_drop(replace(VERDICT, rule="paired", paired=pairs), Metric())
    assert least is not None
    failed = compute_fail_power(least / 100.0, prompts, FLIP_RATE, 0.05, margin / 100.0)
    assert failed == pytest.approx(0.8, abs=0.002)
    assert compute_paired_power(least / 100.0, prompts, FLIP_RATE, 0.05) >= failed
