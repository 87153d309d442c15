"""Seeded simulations in process: does each rule keep the level that it promises?

Prompts are a mixture: always right, always wrong, or right with a probability drawn uniformly from 0..1. The last kind
has the share 3 * flip rate, so that two runs of one endpoint disagree with the flip rate.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.calibration import acceptance_region
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.planning import noninferiority_power, paired_power
from serve_eval.stats.tango import score_z

REPLICATES = 2000
N = 198
FLIP_RATE = 0.088


def _prompts(random: numpy.random.Generator, shape: Any, flip_rate: float, accuracy: float = 0.7) -> Any:
    """Chance of a right answer for each prompt."""
    stable = (random.random(shape) < accuracy).astype(float)
    return numpy.where(random.random(shape) < 3 * flip_rate, random.random(shape), stable)


def _run(random: numpy.random.Generator, chances: Any) -> Any:
    return (random.random(chances.shape) < chances).astype(float)


@pytest.mark.parametrize(("replicates", "low", "high"), [(1000, 29, 74), (2000, 69, 133), (5000, 201, 302)])
def test_the_acceptance_region_equals_exact_binomial_sums(replicates: int, low: int, high: int) -> None:
    assert acceptance_region(replicates, 0.05) == (low, high)


def test_the_shared_vectors_hold(vectors: Any) -> None:
    for vector in vectors("calibration_region"):
        inputs, expected = vector["inputs"], vector["expected"]
        region = acceptance_region(inputs["replicates"], inputs["alpha"], inputs["check_false_alarm"])
        assert region == (expected["low"], expected["high"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 0.05), "replicates"), ((10, 0.0), "level"), ((10, 0.05, 1.0), "false alarm rate")],
)
def test_a_region_needs_a_level_and_replicates(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ServeEvalError, match=message):
        acceptance_region(*arguments)


def test_mid_p_alarms_between_two_runs_of_one_endpoint_as_often_as_its_exact_level_says() -> None:
    random = numpy.random.default_rng(20240601)
    chances = _prompts(random, (REPLICATES, N), FLIP_RATE)
    difference = _run(random, chances) - _run(random, chances)
    down, up = (difference < 0).sum(axis=1), (difference > 0).sum(axis=1)
    alarms = sum(mcnemar(int(b), int(c)).p_mid <= 0.05 for b, c in zip(down, up, strict=True))
    low, high = acceptance_region(REPLICATES, paired_power(0.0, N, FLIP_RATE, 0.05))
    assert low <= alarms <= high


def test_the_paired_t_test_alarms_at_its_level_on_averages_of_three_runs() -> None:
    random = numpy.random.default_rng(20240602)
    chances = _prompts(random, (REPLICATES, N), FLIP_RATE)
    reference = sum(_run(random, chances) for _ in range(3)) / 3
    difference = _run(random, chances) - reference
    low, high = acceptance_region(REPLICATES, 0.05)
    assert low <= sum(paired_t(row).p <= 0.05 for row in difference) <= high


def test_tango_keeps_its_level_where_the_drop_equals_the_margin() -> None:
    random = numpy.random.default_rng(20240603)
    margin, n = 0.03, 500
    counts = random.multinomial(n, [FLIP_RATE / 2 + margin, FLIP_RATE / 2, 1 - FLIP_RATE - margin], REPLICATES)
    z = score_z(counts[:, 0], counts[:, 1], n, -margin)
    exact = noninferiority_power(margin, n, FLIP_RATE, 0.05, drop=margin)
    assert 0.039 <= exact <= 0.055
    low, high = acceptance_region(REPLICATES, exact)
    assert low <= int((z > 1.6448536269514722).sum()) <= high


def test_the_classic_rule_has_its_level_with_fresh_prompts_and_hardly_any_with_the_same_ones() -> None:
    random = numpy.random.default_rng(20240604)
    margin = -classic_test(N, 0.0, 50.0, 0.05, 0.2).threshold / 100
    fresh = random.binomial(N, 0.5, (2, REPLICATES)) / N
    low, high = acceptance_region(REPLICATES, 0.0486)
    assert low <= int((fresh[0] - fresh[1] < -margin).sum()) <= high
    chances = _prompts(random, (REPLICATES, N), 0.034)
    same = (_run(random, chances) - _run(random, chances)).mean(axis=1)
    assert int((same < -margin).sum()) == 0


@pytest.mark.parametrize("drop", [0.0, 0.05, 0.075], ids=["no drop", "the margin", "one and a half margins"])
def test_an_early_stop_agrees_with_the_full_run_except_with_probability_eps(drop: float) -> None:
    random = numpy.random.default_rng(20240605)
    runs, n, margin, eps = 500, 300, 0.05, 0.05
    wrong = saved = 0
    for _ in range(runs):
        chances = _prompts(random, n, 0.034)
        reference, candidate = _run(random, chances), _run(random, chances)
        candidate = numpy.where(random.random(n) < drop / 0.7, 0.0, candidate)
        values = (candidate - reference)[random.permutation(n)].tolist()
        stop = EarlyClassic.paired(n, margin, eps=eps)
        full = Decision.FAIL if sum(values) / n < -margin else Decision.PASS
        early = stop.update(values)
        wrong += early is not None and early is not full
        saved += n - stop.looked_at
    assert wrong <= acceptance_region(runs, eps)[1]
    assert saved > 0.05 * runs * n
