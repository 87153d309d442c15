"""Test faults of single requests where the floor was given, and where none is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from serve_eval.evidence.probes.floor import DistanceLimits
from serve_eval.evidence.probes.judging import MORE, ProbeEvidence
from serve_eval.evidence.probes.sentences import explain_outcome
from serve_eval.schema import ProbeDistance
from serve_eval.schema import VerificationOutcome as Outcome

NEAR, FLOOR = 0.05, 0.08


def _judge(
    nats: Sequence[float], *, floor: float | None, again: bool = True, ended: bool = True
) -> ProbeEvidence:
    found = ProbeEvidence(limits=DistanceLimits(noise=0.0, step=0.0, floor=floor))
    for one in nats:
        repeats = (one if again else 0.0,) * 3 if one > found.limits.far else ()
        found.add(ProbeDistance(probe="p", nats=one, repeats=repeats))
    found.ended = ended
    return found


@pytest.mark.parametrize(
    ("nats", "outcome"),
    [
        ([NEAR] * 177 + [6.89, 2.1, 0.9], Outcome.FAULT),
        ([NEAR] * 198 + [0.9, 0.7], Outcome.FAULT),
        ([NEAR] * 199 + [2.1], Outcome.FAULT),
        ([NEAR] * 60 + [0.9] + [NEAR] * MORE, Outcome.UNDECIDED),
        ([NEAR] * 60, Outcome.OTHER_NUMERICS),
        # Near the allowed 5 %, which more probes do not decide.
        (([0.2] + [NEAR] * 19) * 9 + [NEAR] * 18 + [0.9, 0.7], Outcome.FAULT),
    ],
)
def test_hits_that_return_are_a_fault_beside_a_given_floor(
    nats: list[float], outcome: Outcome
) -> None:
    assert _judge(nats, floor=FLOOR).conclude() is outcome


def test_hits_that_do_not_return_are_none() -> None:
    found = _judge([NEAR] * 60 + [0.9] + [NEAR] * MORE, floor=FLOOR, again=False)
    assert found.conclude() is Outcome.OTHER_NUMERICS


def test_another_model_is_not_called_a_fault_before_its_evidence_is_there() -> None:
    early = _judge([0.3, 3.0, 3.0], floor=FLOOR, ended=False)
    assert early.conclude() in (Outcome.UNDECIDED, Outcome.ANOTHER)
    assert _judge([0.3] * 10 + [3.0] * 2, floor=FLOOR).conclude() is Outcome.ANOTHER


@pytest.mark.parametrize(
    ("nats", "outcome"),
    [
        ([0.0] * 57 + [1.2, 0.9, 0.8], Outcome.FAULT),  # alike elsewhere, bit for bit
        ([0.0] * 59 + [3.0], Outcome.FAULT),
        ([0.0] * 59 + [0.9], Outcome.UNDECIDED),
        ([NEAR] * 18 + [9.73, 6.0], Outcome.FAULT),
        ([NEAR] * 19 + [9.73], Outcome.UNDECIDED),
        ([NEAR] * 17 + [3.0] * 3, Outcome.UNDECIDED),  # healthy experts flip too
        ([0.4] * 40, Outcome.UNDECIDED),
    ],
)
def test_hits_that_no_numerics_explain_are_a_fault_without_a_floor(
    nats: list[float], outcome: Outcome
) -> None:
    """ "differ, by at most 9.73 nat, and no floor says ..." was UNDECIDED."""
    assert _judge(nats, floor=None).conclude() is outcome


def test_the_reason_of_a_fault_has_its_figures() -> None:
    told = explain_outcome(_judge([0.0] * 57 + [1.2, 0.9, 0.8], floor=None))
    assert told == (
        "3 of 60 probes differ by up to 1.2 nat, which no numerics explain, and 3 of them did so"
        " each time they were asked again: a fault of single requests"
    )


def test_a_hit_far_away_is_followed_without_a_floor_and_a_small_difference_is_not() -> None:
    small = _judge([NEAR] * 20, floor=None, ended=False)
    far = _judge([NEAR] * 19 + [9.0], floor=None, ended=False)
    assert (small.can_decide(200), far.can_decide(200)) == (False, True)
    followed = _judge([NEAR] * 19 + [9.0] + [NEAR] * MORE, floor=None, ended=False)
    assert not followed.can_decide(200)
