from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest

from serve_eval.stats.judgement import judge
from serve_eval.stats.pairs import Pairs, pair
from serve_eval.stats.repeats import effect_of, inflate_bound, inflate_p, instability, run_effect


def _pairs(sd: float, seed: int, runs: int = 5, n: int = 600) -> Pairs:
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


def test_runs_that_differ_as_a_whole_inflate_every_error() -> None:
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


def test_alike_runs_are_left_as_they_are_with_rare_exceptions() -> None:
    effects = [run_effect(_pairs(0.0, seed)) for seed in range(100)]
    found = [effect.inflation > 1.0 for effect in effects if effect is not None]
    assert len(found) == 100
    assert sum(found) <= 12  # 5 on average; 13 or more has a chance of .0015


def test_a_common_shift_of_whole_runs_is_no_proof_of_a_drop() -> None:
    """Each side of 100 comparisons has its own shift.

    Without the inflation some 40 of them would fail.
    """
    alarms = sum(
        p <= 0.05
        for seed in range(100)
        if (p := judge(_pairs(0.4, seed, runs=10), margin=0.1).test.p) is not None
    )
    assert alarms <= 14


def test_both_sides_tell_of_run_effects() -> None:
    one_each = pair([1.0, 0.0] * 20, [0.0, 1.0] * 20, lo=0.0, hi=1.0, higher_is_better=True)
    assert run_effect(one_each) is None
    pairs = _pairs(0.6, 3)
    turned = pair(pairs.candidate, pairs.reference, lo=0.0, hi=1.0, higher_is_better=True)
    assert run_effect(turned) == run_effect(pairs)


def test_what_the_whole_reference_shows_is_allowed_for_on_a_subset() -> None:
    whole = _pairs(0.4, 5)
    effect = effect_of(whole.reference)
    assert effect is not None
    assert effect.inflation > 1.5
    few = pair(
        whole.reference[:, :40], whole.candidate[:, :40], lo=0.0, hi=1.0, higher_is_better=True
    )
    alone = run_effect(few)
    assert alone is not None
    assert alone.inflation == 1.0
    assert run_effect(replace(few, reference_effect=effect)) == effect


def test_calm_runs_of_the_candidate_do_not_hide_what_the_reference_shows() -> None:
    pairs = _pairs(0.4, 5)
    calm = _pairs(0.0, 6, runs=8).reference
    both = pair(pairs.reference, calm, lo=0.0, hi=1.0, higher_is_better=True)
    assert run_effect(both) == effect_of(pairs.reference)


def test_alike_prompts_of_a_cluster_are_no_effect_of_runs() -> None:
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


def test_few_prompts_that_vary_tell_nothing() -> None:
    runs = numpy.ones((3, 50))
    runs[0, :9] = 0.0
    assert run_effect(pair(runs, numpy.ones(50), lo=0.0, hi=1.0, higher_is_better=True)) is None


@pytest.mark.parametrize(
    ("p", "expected"), [(0.5, 0.5), (0.9, 0.9), (0.0227501, 0.158655), (0.0, 0.0)]
)
def test_evidence_shrinks_by_the_factor(p: float, expected: float) -> None:
    assert inflate_p(p, 2.0) == pytest.approx(expected, rel=1e-4)
    assert inflate_p(p, 1.0) == p
    assert inflate_bound(-math.inf, 0.0, 2.0) == -math.inf
    assert inflate_bound(-3.0, -1.0, 2.0) == -5.0
