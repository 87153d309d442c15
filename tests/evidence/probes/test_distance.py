"""Test the distances of answers to a probe, their floor, and those of siblings."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evidence.paired_probes import PairedCounts, count_probes
from serve_eval.evidence.probe_floor import (
    GONE,
    LEAST_FLOOR,
    DistanceLimits,
    count_unmeasured,
    find_floor,
    find_step,
    is_measured,
    keep_measured,
    limits_of,
    measure_distance,
)
from serve_eval.evidence.probe_judging import CLEAN, ProbeEvidence
from serve_eval.evidence.probe_sentences import DECIDES, count_needed, explain_outcome
from serve_eval.schema import ProbeDistance, ProbeReading, TokenReading, Verification
from serve_eval.schema import VerificationOutcome as Outcome

RED = TokenReading(text=" red", logprob=-0.9, top={" red": -0.9, " blue": -1.2, " green": -2.5})
NEAR = TokenReading(text=" red", logprob=-0.95, top={" red": -0.95, " blue": -1.1, " green": -2.6})
BLUE = TokenReading(text=" blue", logprob=-0.8, top={" blue": -0.8, " red": -1.4, " green": -2.5})
OTHER = TokenReading(text=" car", logprob=-0.1, top={" car": -0.1, " bus": -2.4, " van": -4.0})


def _reading(*tokens, skipped=0, text=None):
    said = "".join(token.text for token in tokens) if text is None else text
    return ProbeReading(text=said, tokens=tokens, skipped=skipped)


@pytest.mark.parametrize(
    ("a", "b", "nats", "token", "at_least", "flipped"),
    [
        ((RED, RED), (RED, RED), 0.0, 0, False, False),
        ((RED, RED), (NEAR, RED), 0.05, 0, False, False),
        ((RED, RED), (RED, NEAR), 0.05, 1, False, False),
        ((RED, RED), (BLUE, OTHER), 0.5, 0, False, True),
        ((RED, RED), (OTHER, RED), 3.1, 0, True, True),
        ((OTHER, RED), (RED, RED), 2.4, 0, True, True),
        ((RED,), (RED,), 0.0, 0, False, False),
        ((RED, RED), (RED,), 0.0, 0, False, False),
    ],
)
def test_the_likeliest_token_of_the_reference_is_compared(
    a,
    b,
    nats,
    token,
    at_least,
    flipped,
):
    found = measure_distance("p", _reading(*a), _reading(*b))
    assert found.nats == pytest.approx(nats)
    assert (found.token, found.at_least, found.flipped) == (token, at_least, flipped)


def test_second_tokens_are_aligned_where_the_first_is_left_out():
    a = _reading(RED, RED)
    short = _reading(NEAR, skipped=1, text=" red red")
    found = measure_distance("p", a, short)
    assert (found.token, found.nats) == (1, pytest.approx(0.05))
    assert measure_distance("p", a, _reading(NEAR, skipped=1, text=" blue red")) is None
    back = measure_distance("p", short, a)
    assert back.token == 1


def test_an_answer_that_ended_at_once_is_as_far_as_can_be():
    found = measure_distance("p", _reading(RED, RED), ProbeReading(text=""))
    assert (found.nats, found.flipped) == (GONE, True)


@pytest.mark.parametrize(("text", "nats"), [(" red car", 0.0), (" blue", 0.3), (" car", 0.3)])
def test_flips_count_without_log_probabilities(text, nats):
    found = measure_distance("p", _reading(RED, RED), ProbeReading(text=text))
    assert found.nats == pytest.approx(nats)


def test_flips_of_near_ties_do_not_count():
    tie = TokenReading(text=" red", logprob=-0.9, top={" red": -0.9, " blue": -1.0})
    found = measure_distance("p", _reading(tie), ProbeReading(text=" blue"))
    assert (found.nats, found.flipped) == (0.0, True)


@pytest.mark.parametrize(
    ("values", "step"),
    [([-0.9, -1.25], 0.01), ([-0.5, -1.0], 0.1), ([-0.123456, -1.5], 1e-6), ([-0.1234567891], 0.0)],
)
def test_the_step_is_that_of_the_decimals(values, step):
    top = {str(i): value for i, value in enumerate(values)}
    token = TokenReading(text="0", logprob=values[0], top=top)
    assert find_step([_reading(token)]) == pytest.approx(step)


NATS = st.floats(0, 100)


def _distance(nats=0.1, **options):
    return ProbeDistance(probe="p", nats=nats, **options)


@pytest.mark.parametrize(
    ("count", "beyond"),
    [(1, 0), (58, 0), (92, 0), (93, 1), (123, 1), (124, 2), (152, 2), (153, 3), (181, 4)],
)
def test_the_floor_is_wilks_tolerance_limit(count, beyond):
    """The numbers of observations are those of Wilks' tables for 95 %, 95 %."""
    assert find_floor([100.0 + one for one in range(count)]) == 99.0 + count - beyond


@given(st.lists(NATS, min_size=1, max_size=200), NATS)
def test_no_probe_sets_the_floor_alone(nats, one):
    assert find_floor([*nats, one]) <= max(3 * max(nats), 0.0)
    assert 0.0 <= find_floor(nats) <= max(nats)


def test_without_distances_the_floor_is_zero():
    assert find_floor([]) == 0.0


def test_only_listed_log_probabilities_are_measured():
    placeholders = [
        None,
        _distance(at_least=True),
        _distance(texts_only=True),
        _distance(GONE),
        _distance(9999.0),
    ]
    assert not any(is_measured(one) for one in placeholders if one is not None)
    assert keep_measured([*placeholders, _distance(0.2)]) == [0.2]
    assert count_unmeasured([*placeholders, _distance(0.2)]) == 5


@pytest.mark.parametrize(("measured", "far"), [(False, 0.9), (True, 0.5)])
def test_the_limits_of_a_result_know_who_measured_its_floor(measured, far):
    """Only a given floor says that a fault is three floors away."""
    result = Verification(
        started_at="",
        wall_s=1.0,
        reference="r",
        noise=0.01,
        step=0.001,
        floor=0.3,
        floor_measured=measured,
        sibling_median=0.1,
        reference_requests=1,
        prompt_lengths=(1, 2),
        salted=True,
        warnings=(),
        sides=(),
        exit_code=0,
    )
    limits = limits_of(result)
    assert (limits.measured, limits.typical, limits.far) == (measured, 0.1, pytest.approx(far))


SD, PROBES = 0.02, 200


def _draw(seed, sd, count=PROBES):
    rng = random.Random(seed)
    return [abs(rng.gauss(0, sd)) for _ in range(count)]


def _judge(
    own,
    *siblings,
    floor=None,
    again=True,
    clean=CLEAN,
    noise=0.0,
):
    """Judge a server by all probes. Its far answers return with `again`."""
    ordered = sorted(siblings[0])
    limits = DistanceLimits(
        noise=noise,
        step=0.0,
        floor=max(map(find_floor, siblings)) if floor is None else floor,
        measured=True,
        typical=ordered[len(ordered) // 2],
    )
    found = ProbeEvidence(limits=limits)
    found.paired.siblings = len(siblings)
    for number, nats in enumerate(own):
        repeats = ((nats if again else 0.0),) * 3 if nats > limits.far and found.far < 3 else ()
        found.add(
            ProbeDistance(
                probe="p",
                nats=nats,
                repeats=repeats,
                sibling_nats=tuple(one[number] for one in siblings),
            )
        )
    found.ended = True
    more = [nats for one in siblings for nats in one]
    found.healthy = (more * (1 + clean // len(more)))[: max(clean, len(more))]
    return found


def test_a_sibling_that_answers_alike_measures_no_floor():
    """It was ANOTHER in 400 of 400: every distance lay beyond a floor of 0."""
    for sd in (0.005, 0.01, 0.25):
        found = _judge(_draw(1, sd), [0.0] * PROBES)
        assert found.conclude() is Outcome.UNDECIDED
        assert found.highest == 0.0
        assert DECIDES in explain_outcome(found)
        assert "differs by at most 0 nat" in explain_outcome(found)
    assert "AS FAR APART AS FOUR-BIT" in explain_outcome(found)
    small = _judge(_draw(1, 0.25), _draw(2, 2e-6))
    assert small.conclude() is Outcome.UNDECIDED
    assert "e-06 nat, as replicas do" in explain_outcome(small)
    assert _judge([0.0] * 60, [0.0] * 60).conclude() is Outcome.IDENTICAL


@pytest.mark.parametrize(
    ("floor", "typical", "noise", "known"),
    [
        (LEAST_FLOOR, 0.01, 0.0, True),
        (0.0199, 0.01, 0.0, False),
        (0.0199, 0.01, 0.02, True),  # an engine with noise of its own
        (1.0, 0.0, 0.0, False),  # single probes alone
        (None, 0.0, 0.5, False),
    ],
)
def test_a_floor_is_known_from_a_fiftieth_of_a_nat(floor, typical, noise, known):
    limits = DistanceLimits(noise=noise, step=0.0, floor=floor, measured=True, typical=typical)
    assert limits.known is known


def test_a_given_floor_is_known_as_it_is():
    assert DistanceLimits(noise=0.0, step=0.0, floor=0.001).known


def test_an_outlier_of_the_sibling_hides_one_probe_and_not_all():
    """The floor, a maximum of 60, was 1 nat, and four-bit weights were OTHER NUMERICS."""
    sibling = _draw(2, SD)
    sibling[7], sibling[9] = 1.0, 1.2
    found = _judge(_draw(1, 0.25), sibling)
    assert found.limits.floor > 0.05
    assert found.conclude() is Outcome.ANOTHER
    assert "times as far away as the sibling, and so is the median" in explain_outcome(found)
    assert _judge(_draw(1, SD), sibling).conclude() is Outcome.OTHER_NUMERICS


@pytest.mark.parametrize(
    ("times", "outcomes"),
    [
        (1.0, {Outcome.OTHER_NUMERICS}),
        (1.5, {Outcome.OTHER_NUMERICS}),
        (2.0, {Outcome.OTHER_NUMERICS, Outcome.UNDECIDED}),
        (6.0, {Outcome.ANOTHER}),
    ],
)
def test_healthy_is_at_most_twice_as_far_as_the_sibling(times, outcomes):
    """The sign against the distances themselves accused noise of 1.5 times in .89."""
    found = {_judge(_draw(i, times * SD), _draw(100 + i, SD)).conclude() for i in range(20)}
    assert found <= outcomes, found


@pytest.mark.parametrize(
    ("pairs", "larger", "signed"),
    [
        # The sign alone: three of five probes are more than twice as far, by little.
        ([(0.021, 0.001), (0.41, 0.2), (0.41, 0.2), (0.1, 0.5), (0.1, 0.5)], False, True),
        # The size alone: the median is five times as far, and two of five probes are.
        ([(0.49, 0.05), (0.49, 0.05), (0.25, 0.15), (0.25, 0.15), (0.05, 0.04)], True, False),
        ([(0.2, 0.02)] * 4 + [(0.02, 0.02)], True, True),
    ],
)
def test_another_needs_the_size_and_the_sign(pairs, larger, signed):
    limits = DistanceLimits(noise=0.0, step=0.0, floor=0.1, measured=True, typical=0.02)
    found = ProbeEvidence(limits=limits)
    for own, sibling in pairs * 100:
        found.add(ProbeDistance(probe="p", nats=own, sibling_nats=(sibling,)))
    assert (found.paired.larger, found.paired.log_sign > 5) == (larger, signed)
    assert (found.conclude() is Outcome.ANOTHER) == (larger and signed)
    assert found.found == (larger and signed)


def test_with_several_siblings_a_healthy_server_exceeds_all_of_them_less_often():
    two = _judge(_draw(1, 6 * SD), _draw(2, SD), _draw(3, SD))
    assert two.conclude() is Outcome.ANOTHER
    assert "as far away as each sibling" in explain_outcome(two)
    assert "at most 1 in 3 is" in explain_outcome(two)
    near = _judge(_draw(1, SD), _draw(2, SD), _draw(3, 4 * SD))
    assert near.conclude() is Outcome.OTHER_NUMERICS


def test_a_probe_that_a_sibling_left_out_is_not_compared():
    counts = PairedCounts(limits=DistanceLimits(noise=0.0, step=0.0, floor=0.1), siblings=2)
    counts.add(ProbeDistance(probe="p", nats=1.0, sibling_nats=(0.1,)))
    assert counts.pairs == 0


def _with_hits(hits, nats=3.0, seed=1, sd=SD):
    own = _draw(seed, sd)
    for number in range(hits):
        own[10 + 9 * number] = nats
    return own


def test_hits_that_no_sibling_has_are_a_fault():
    """Three of 180 probes by up to 6.89 nat, again each time, were OTHER NUMERICS with exit 0."""
    found = _judge(_with_hits(3, 6.89), _draw(2, SD))
    assert found.conclude() is Outcome.FAULT
    told = explain_outcome(found)
    assert told.startswith("3 of 200 probes differ by up to 6.89 nat, as none of ")
    assert (
        "and 3 of them did so each time they were asked again: a fault of single requests" in told
    )
    assert _judge(_with_hits(1, 0.9), _draw(2, SD)).conclude() is Outcome.FAULT
    few = _judge(_with_hits(2, 1.0), _draw(2, SD), clean=CLEAN - 1)
    assert few.conclude() is Outcome.UNDECIDED
    assert f"if none of {CLEAN} answers of siblings does" in explain_outcome(few)
    assert _judge(_with_hits(2, 6.0), _draw(2, SD), clean=0).conclude() is Outcome.FAULT


def test_hits_are_no_fault_where_siblings_have_them():
    sibling = _with_hits(6, 0.9, seed=2)
    sibling.reverse()
    found = _judge(_with_hits(5), sibling)
    assert found.conclude() is Outcome.OTHER_NUMERICS
    assert "5 are far away, and 6 of the siblings'" in explain_outcome(found)
    needed = count_needed(found)
    assert 200 < needed < 1000


def test_many_hits_beside_those_of_siblings_are_a_fault():
    sibling = _with_hits(2, 0.9, seed=2)
    sibling.reverse()
    found = _judge(_with_hits(20), sibling)
    assert found.conclude() is Outcome.FAULT
    assert "at 20 of 200 probes this server is far away and no sibling is" in explain_outcome(found)


def test_a_heavy_tail_of_the_sibling_explains_a_hit():
    """Its largest distances fall slowly, so that one a little further is to be expected."""
    tail = [0.003 * (200 / rank) ** 0.5 for rank in range(1, 201)]
    assert max(tail) < 0.25
    heavy = _judge(_with_hits(1, 0.6), [*tail[::2], *tail[1::2]], floor=0.05)
    steep = _judge(_with_hits(1, 0.6), _draw(2, SD), floor=0.05)
    assert (heavy.conclude(), steep.conclude()) == (Outcome.UNDECIDED, Outcome.FAULT)
    assert "a second one would show a fault" in explain_outcome(heavy)


@given(st.floats(0, 0.2), st.floats(0.02, 0.3))
def test_more_healthy_flips_need_more_probes(healthy, share):
    needed = count_probes((healthy, healthy), share)
    assert needed <= count_probes((healthy + 0.05, healthy + 0.05), share)
    assert count_probes((healthy, healthy), share + 0.1) <= needed


def test_a_watch_alone_counts_as_far_what_is_beyond_three_measured_floors():
    limits = DistanceLimits(noise=0.0, step=0.0, floor=0.4, measured=True, typical=0.1)
    assert (limits.far, limits.far_alone, limits.beyond_floor) == (0.5, pytest.approx(1.2), 0.8)
