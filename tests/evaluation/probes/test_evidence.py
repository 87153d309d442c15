"""Test the conclusion after each probe: limits, order, and the error rate over all looks."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from serve_eval.evaluation.probes.evidence import (
    ALLOWED,
    ALLOWED_FAR,
    ALPHA,
    FAR_NATS,
    MORE,
    DistanceLimits,
    ProbeEvidence,
)
from serve_eval.schema import ProbeDistance
from serve_eval.schema import VerificationOutcome as Outcome

FLOOR = 0.08
NEAR, BEYOND, VERY_FAR = 0.05, 0.2, 3.0


def _judge(
    nats: Iterable[float], *, floor: float | None = FLOOR, noise: float = 0.0, step: float = 0.0
) -> ProbeEvidence:
    evidence = ProbeEvidence(limits=DistanceLimits(noise=noise, step=step, floor=floor))
    for number, value in enumerate(nats):
        evidence.add(ProbeDistance(probe=str(number), nats=value))
    return evidence


@pytest.mark.parametrize(
    ("nats", "outcome"),
    [
        ([0.0] * 46, Outcome.UNDECIDED),
        ([0.0] * 50, Outcome.IDENTICAL),
        ([0.0] * 49 + [1e-6], Outcome.OTHER_NUMERICS),
        ([NEAR] * 50, Outcome.OTHER_NUMERICS),
        ([BEYOND] * 4, Outcome.ANOTHER),
        ([BEYOND] * 2, Outcome.UNDECIDED),
        ([VERY_FAR] * 3, Outcome.ANOTHER),
        ([NEAR] * 40 + [BEYOND] * 2, Outcome.UNDECIDED),
        ([NEAR] * 60 + [VERY_FAR] + [0.0] * (MORE - 1), Outcome.UNDECIDED),
        ([NEAR] * 60 + [VERY_FAR] + [0.0] * MORE, Outcome.OTHER_NUMERICS),
        ([], Outcome.UNDECIDED),
    ],
)
def test_the_outcome_follows_from_the_distances(nats: list[float], outcome: Outcome) -> None:
    assert _judge(nats).conclude() is outcome


def test_the_outcome_another_stays() -> None:
    """Later probes cannot take it back, since the evidence may be looked at at any time."""
    evidence = _judge([BEYOND] * 5 + [0.0] * 300)
    assert evidence.conclude() is Outcome.ANOTHER
    assert evidence.highest_evidence >= 1 / ALPHA


def test_without_a_floor_only_identical_is_concluded() -> None:
    assert _judge([5.0] * 300, floor=None).conclude() is Outcome.UNDECIDED
    assert _judge([NEAR] * 300, floor=None).conclude() is Outcome.UNDECIDED
    assert _judge([0.0] * 60, floor=None).conclude() is Outcome.IDENTICAL


def test_noise_and_rounding_raise_the_limits() -> None:
    assert _judge([NEAR] * 60, noise=0.06).conclude() is Outcome.IDENTICAL
    assert _judge([0.009] * 60, step=0.01).conclude() is Outcome.IDENTICAL
    assert _judge([BEYOND] * 60, noise=0.3).conclude() is Outcome.IDENTICAL
    assert _judge([0.089] * 60, noise=0.06).conclude() is Outcome.IDENTICAL
    assert _judge([0.091] * 60, noise=0.06).conclude() is Outcome.ANOTHER
    assert _judge([0.3] * 2 + [0.0] * 118, noise=0.06).conclude() is Outcome.OTHER_NUMERICS


def test_a_healthy_server_is_rarely_another_one_at_any_look() -> None:
    """Both shares are at their limits, which is worse than any healthy server that was seen."""
    rng, accused, trials = random.Random(5), 0, 400
    for _ in range(trials):
        evidence = ProbeEvidence(limits=DistanceLimits(noise=0.0, step=0.0, floor=FLOOR))
        for number in range(200):
            u = rng.random()
            nats = 1.0 if u < ALLOWED_FAR else BEYOND if u < ALLOWED else NEAR
            evidence.add(ProbeDistance(probe=str(number), nats=nats))
            if evidence.found:
                break
        accused += evidence.found
    assert accused <= 8  # the level allows 4 on average


@pytest.mark.parametrize(("share", "least"), [(0.08, 0.6), (0.5, 0.999)])
def test_a_fault_of_few_requests_is_mostly_found_within_the_budget(
    share: float, least: float
) -> None:
    rng, found, trials = random.Random(6), 0, 200
    for _ in range(trials):
        evidence = _judge(VERY_FAR if rng.random() < share else 0.0 for _ in range(200))
        found += evidence.found
    assert found >= least * trials


def test_far_is_half_a_nat_or_three_floors() -> None:
    assert DistanceLimits(noise=0.0, step=0.0, floor=FLOOR).far == FAR_NATS
    assert DistanceLimits(noise=0.0, step=0.0, floor=1.0).far == 3.0


def test_every_outcome_has_a_reason_with_its_figures() -> None:
    for nats, words in (
        ([0.0] * 60, "none of 60 probes"),
        ([NEAR] * 60, "60 of 60 probes differ, by at most 0.05 nat"),
        ([BEYOND] * 10, "10 of 10 probes differ by more than healthy numerics (0.08 nat)"),
        ([NEAR] * 10, "none of 10 probes differs by more than healthy numerics"),
        ([BEYOND] * 2, "2 of 2 probes differ by more than healthy numerics: too many"),
    ):
        assert words in _judge(nats).explain()
    assert "no floor says" in _judge([NEAR] * 60, floor=None).explain()
