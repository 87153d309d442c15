"""Test the conclusion after each probe, also with faults of single requests."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evidence.probe_floor import (
    ALLOWED,
    ALLOWED_FAR,
    FAR_NATS,
    DistanceLimits,
    weigh_probes,
)
from serve_eval.evidence.probe_judging import EVIDENCE_ALPHA, MORE, ProbeEvidence, ServerFamily
from serve_eval.evidence.probe_sentences import explain_outcome
from serve_eval.schema import ProbeDistance
from serve_eval.schema import VerificationOutcome as Outcome
from serve_eval.stats.multiplicity import holm

FLOOR = 0.08
NEAR, BEYOND, VERY_FAR = 0.05, 0.2, 3.0


def _judge(
    nats,
    *,
    floor=FLOOR,
    noise=0.0,
    step=0.0,
    unanswered=0,
):
    limits = DistanceLimits(noise=noise, step=step, floor=floor)
    evidence = ProbeEvidence(limits=limits, unanswered=unanswered)
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
def test_the_outcome_follows_from_the_distances(nats, outcome):
    assert _judge(nats).conclude() is outcome


@pytest.mark.parametrize("near", [0.0, NEAR])
def test_what_got_no_answer_may_have_differed_and_accuses_nobody(near):
    sound = Outcome.OTHER_NUMERICS if near else Outcome.IDENTICAL
    assert _judge([near] * 87, unanswered=1).conclude() is Outcome.UNDECIDED
    assert _judge([near] * 88, unanswered=1).conclude() is sound
    assert _judge([near] * 194, unanswered=6).conclude() is sound
    lost = _judge([near] * 192, unanswered=8)
    assert lost.conclude() is Outcome.UNDECIDED
    assert lost.tried == 200
    assert "so few, with 8 unanswered, exclude only a share of 11%" in explain_outcome(lost)
    assert lost.highest == 0.0


def test_the_outcome_another_stays():
    """Later probes cannot take it back, since the evidence may be looked at at any time."""
    evidence = _judge([BEYOND] * 5 + [0.0] * 300)
    assert evidence.conclude() is Outcome.ANOTHER
    assert evidence.highest_evidence >= 1 / EVIDENCE_ALPHA


def test_without_a_floor_only_identical_is_concluded():
    assert _judge([5.0] * 300, floor=None).conclude() is Outcome.UNDECIDED
    assert _judge([NEAR] * 300, floor=None).conclude() is Outcome.UNDECIDED
    assert _judge([0.0] * 60, floor=None).conclude() is Outcome.IDENTICAL


def test_noise_and_rounding_raise_the_limits():
    assert _judge([NEAR] * 60, noise=0.06).conclude() is Outcome.IDENTICAL
    assert _judge([0.009] * 60, step=0.01).conclude() is Outcome.IDENTICAL
    assert _judge([BEYOND] * 60, noise=0.3).conclude() is Outcome.IDENTICAL
    assert _judge([0.089] * 60, noise=0.06).conclude() is Outcome.IDENTICAL
    assert _judge([0.091] * 60, noise=0.06).conclude() is Outcome.ANOTHER
    assert _judge([0.3] * 2 + [0.0] * 118, noise=0.06).conclude() is Outcome.OTHER_NUMERICS


def test_a_healthy_server_is_rarely_another_one_at_any_look():
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


LIMITS = DistanceLimits(noise=0.0, step=0.0, floor=FLOOR)
COUNTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), min_size=1, max_size=20)


def _family(counts):
    """Return servers with numbers of probes beyond the floor, after those within it."""
    family = ServerFamily(LIMITS, len(counts))
    for one, (beyond, near) in zip(family.members, counts, strict=True):
        for number, value in enumerate([NEAR] * near + [BEYOND] * beyond):
            one.add(ProbeDistance(probe=str(number), nats=value))
    return family


@given(COUNTS)
def test_holm_finds_at_least_the_servers_that_a_shared_level_finds(
    counts,
):
    family = _family(counts)
    for one in family.members:
        alone = one.p <= EVIDENCE_ALPHA
        if one.p < EVIDENCE_ALPHA / len(counts):
            assert one.conclude() is Outcome.ANOTHER
        assert alone or not one.found  # and none that would not be found alone


@given(COUNTS, st.data())
def test_a_server_that_was_found_stays_found(counts, data):
    family = _family(counts)
    before = [one.found for one in family.members]
    place = data.draw(st.integers(0, len(counts) - 1))
    for value in data.draw(st.lists(st.sampled_from([NEAR, BEYOND, VERY_FAR]), max_size=20)):
        family.members[place].add(ProbeDistance(probe="more", nats=value))
    assert all(one.found for one, was in zip(family.members, before, strict=True) if was)


def test_servers_found_before_leave_the_others_a_larger_level():
    """The evidence of 145 is too little for 1 of 2 servers, and enough for the last one."""
    clear, unclear = (8, 0), (3, 1)
    assert not any(one.found for one in _family([unclear, unclear]).members)
    assert all(one.found for one in _family([clear, unclear]).members)
    assert [one.found for one in _family([clear, unclear, (0, 60)]).members] == [
        True,
        False,
        False,
    ]  # a server that is sound, and not asked any more, still counts


def test_the_confidence_of_a_sound_outcome_is_that_of_one_server():
    many = _family([(0, 0)] * 64)
    for number in range(50):
        many.members[0].add(ProbeDistance(probe=str(number), nats=0.0))
    assert many.members[0].conclude() is Outcome.IDENTICAL
    assert many.members[0].bound_share(0) == _judge([0.0] * 50).bound_share(0)


@pytest.mark.parametrize("broken", [0, 32])
def test_a_fleet_at_the_limits_has_one_error_rate_for_all_its_servers(broken):
    """Of 64 servers, some are broken and found at once; the others have the most hits allowed."""
    rng, fleets, healthy, probes = np.random.default_rng(7), 500, 64 - broken, 200
    drawn = rng.random((fleets * healthy, probes), dtype=np.float32)
    beyond, far = (
        np.cumsum(drawn < share, axis=1, dtype=np.int32) for share in (ALLOWED, ALLOWED_FAR)
    )
    counts = (np.arange(1, probes + 1, dtype=np.int32) * 64 + beyond) * 32 + far
    weighed = np.zeros((probes + 1) * 64 * 32)
    for one in np.flatnonzero(np.bincount(counts.ravel())).tolist():
        weighed[one] = weigh_probes(one // (64 * 32), one // 32 % 64, one % 32)
    highest = weighed[counts].max(axis=1).reshape(fleets, healthy)
    accused = sum(
        min(holm([0.0] * broken + np.exp(-np.maximum(row, 0.0)).tolist())[broken:])
        <= EVIDENCE_ALPHA
        for row in highest
    )
    assert accused <= EVIDENCE_ALPHA * fleets


@pytest.mark.parametrize(("share", "least"), [(0.08, 0.6), (0.5, 0.999)])
def test_a_fault_of_few_requests_is_mostly_found_within_the_budget(share, least):
    rng, found, trials = random.Random(6), 0, 200
    for _ in range(trials):
        evidence = _judge(VERY_FAR if rng.random() < share else 0.0 for _ in range(200))
        found += evidence.found
    assert found >= least * trials


def test_far_is_half_a_nat_or_three_floors():
    assert DistanceLimits(noise=0.0, step=0.0, floor=FLOOR).far == FAR_NATS
    assert DistanceLimits(noise=0.0, step=0.0, floor=1.0).far == 3.0


def test_every_outcome_has_a_reason_with_its_figures():
    for nats, words in (
        ([0.0] * 60, "none of 60 probes"),
        ([NEAR] * 60, "60 of 60 probes differ, by at most 0.05 nat"),
        ([BEYOND] * 10, "10 of 10 probes differ by more than healthy numerics (0.08 nat)"),
        ([NEAR] * 10, "none of 10 probes differs by more than healthy numerics"),
        (
            [NEAR] * 60 + [VERY_FAR] + [0.0] * MORE,
            f"at most {VERY_FAR:.3g} nat; 1 beyond 0.5 nat, which no numerics explain: too few to"
            " call it a fault",
        ),
        ([BEYOND] * 2, "2 of 2 probes differ by more than healthy numerics: too many"),
    ):
        assert words in explain_outcome(_judge(nats))
    assert "no floor says" in explain_outcome(_judge([NEAR] * 60, floor=None))


NEAR_FAULTS, FLOOR_FAULTS = 0.05, 0.08


def _judge_faults(nats, *, floor, again=True, ended=True):
    found = ProbeEvidence(limits=DistanceLimits(noise=0.0, step=0.0, floor=floor))
    for one in nats:
        repeats = (one if again else 0.0,) * 3 if one > found.limits.far else ()
        found.add(ProbeDistance(probe="p", nats=one, repeats=repeats))
    found.ended = ended
    return found


@pytest.mark.parametrize(
    ("nats", "outcome"),
    [
        ([NEAR_FAULTS] * 177 + [6.89, 2.1, 0.9], Outcome.FAULT),
        ([NEAR_FAULTS] * 198 + [0.9, 0.7], Outcome.FAULT),
        ([NEAR_FAULTS] * 199 + [2.1], Outcome.FAULT),
        ([NEAR_FAULTS] * 60 + [0.9] + [NEAR_FAULTS] * MORE, Outcome.UNDECIDED),
        ([NEAR_FAULTS] * 60, Outcome.OTHER_NUMERICS),
        # Near the allowed 5 %, which more probes do not decide.
        (([0.2] + [NEAR_FAULTS] * 19) * 9 + [NEAR_FAULTS] * 18 + [0.9, 0.7], Outcome.FAULT),
    ],
)
def test_hits_that_return_are_a_fault_beside_a_given_floor(nats, outcome):
    assert _judge_faults(nats, floor=FLOOR_FAULTS).conclude() is outcome


def test_hits_that_do_not_return_are_none():
    found = _judge_faults(
        [NEAR_FAULTS] * 60 + [0.9] + [NEAR_FAULTS] * MORE, floor=FLOOR_FAULTS, again=False
    )
    assert found.conclude() is Outcome.OTHER_NUMERICS


def test_another_model_is_not_called_a_fault_before_its_evidence_is_there():
    early = _judge_faults([0.3, 3.0, 3.0], floor=FLOOR_FAULTS, ended=False)
    assert early.conclude() in (Outcome.UNDECIDED, Outcome.ANOTHER)
    assert _judge_faults([0.3] * 10 + [3.0] * 2, floor=FLOOR_FAULTS).conclude() is Outcome.ANOTHER


@pytest.mark.parametrize(
    ("nats", "outcome"),
    [
        ([0.0] * 57 + [1.2, 0.9, 0.8], Outcome.FAULT),  # alike elsewhere, bit for bit
        ([0.0] * 59 + [3.0], Outcome.FAULT),
        ([0.0] * 59 + [0.9], Outcome.UNDECIDED),
        ([NEAR_FAULTS] * 18 + [9.73, 6.0], Outcome.FAULT),
        ([NEAR_FAULTS] * 19 + [9.73], Outcome.UNDECIDED),
        ([NEAR_FAULTS] * 17 + [3.0] * 3, Outcome.UNDECIDED),  # healthy experts flip too
        ([0.4] * 40, Outcome.UNDECIDED),
    ],
)
def test_hits_that_no_numerics_explain_are_a_fault_without_a_floor(nats, outcome):
    """ "differ, by at most 9.73 nat, and no floor says ..." was UNDECIDED."""
    assert _judge_faults(nats, floor=None).conclude() is outcome


def test_the_reason_of_a_fault_has_its_figures():
    told = explain_outcome(_judge_faults([0.0] * 57 + [1.2, 0.9, 0.8], floor=None))
    assert told == (
        "3 of 60 probes differ by up to 1.2 nat, which no numerics explain, and 3 of them did so"
        " each time they were asked again: a fault of single requests"
    )


def test_a_hit_far_away_is_followed_without_a_floor_and_a_small_difference_is_not():
    small = _judge_faults([NEAR_FAULTS] * 20, floor=None, ended=False)
    far = _judge_faults([NEAR_FAULTS] * 19 + [9.0], floor=None, ended=False)
    assert (small.can_decide(200), far.can_decide(200)) == (False, True)
    followed = _judge_faults(
        [NEAR_FAULTS] * 19 + [9.0] + [NEAR_FAULTS] * MORE, floor=None, ended=False
    )
    assert not followed.can_decide(200)
