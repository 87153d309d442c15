"""Test the choice and the judgement of probes without an endpoint, and the level of the alarm."""

import math
import random
from itertools import pairwise

import pytest

from serve_eval.evidence.probe_floor import ALLOWED, ALLOWED_FAR, weigh_probes
from serve_eval.stats.betting import compute_starting_share
from serve_eval.workflows.watch import bets
from serve_eval.workflows.watch.bets import ACCURACY, ALPHA, NUMERICS
from serve_eval.workflows.watch.probes import choose_probes, forget_probes, judge_probes
from serve_eval.workflows.watch.record import (
    ProbeCounts,
    Seen,
    SeenProbes,
    State,
    WatchedProbes,
)

FLOOR, FAR = 0.1, 0.5
NEAR, BEYOND, VERY_FAR = 0.05, 0.2, 3.0


def _state(count=100, seed=3):
    return State(
        bound={},
        seed=seed,
        model="m",
        chat=False,
        answers=[],
        usable=[],
        misses=[],
        prompt_tokens=[],
        probes=WatchedProbes(count=count),
    )


def _play(state, asked, nats):
    state.rounds += 1
    found = SeenProbes(
        asked=[str(i) for i in asked],
        nats=list(nats),
        limit=FLOOR,
        beyond=sum(one is not None and one > FLOOR for one in nats),
        far=sum(one is not None and one > FAR for one in nats),
        listed=True,
    )
    seen = Seen(
        round=state.rounds,
        started_at="",
        seconds=0.0,
        asked=[],
        values=[],
        usable="",
        prompt_tokens=[],
        failures={},
        probes=found,
    )
    return judge_probes(state, seen)


def _round(state, nats, most=20):
    asked = choose_probes(state, most)
    return _play(state, asked, [nats(i) for i in asked])


@pytest.mark.parametrize("with_probes", [False, True])
def test_all_alarms_share_one_budget(with_probes):
    state = _state()
    if not with_probes:
        state.probes = None
    levels = bets.levels(state)
    assert math.fsum([*levels.values(), *bets.FLOOR_ALPHA.values()]) == pytest.approx(0.01)
    if not with_probes:
        assert levels == ALPHA == {ACCURACY: 0.005, bets.USABLE: 0.0015, bets.FAILURES: 0.001}
    else:
        assert (levels[NUMERICS], levels[ACCURACY]) == (0.002, 0.003)
    assert bets.limit(state, ACCURACY) == -math.log(levels[ACCURACY])


@pytest.mark.parametrize(
    ("count", "most", "sizes"), [(100, 20, [20] * 5), (61, 20, [16, 15, 15, 15]), (7, 20, [7])]
)
def test_a_cycle_asks_each_probe_once_in_an_order_of_its_own(count, most, sizes):
    state, orders = _state(count), list[list[int]]()
    for _ in range(3):
        order = list[int]()
        for size in sizes:
            asked = choose_probes(state, most)
            assert len(asked) == size
            _play(state, asked, [NEAR] * size)
            order += asked
        assert sorted(order) == list(range(count))
        orders.append(order)
    assert orders[0] != orders[1] != orders[2]
    again = _state(count)
    assert choose_probes(again, most) == orders[0][: sizes[0]]
    assert choose_probes(_state(count, seed=4), most) != orders[0][: sizes[0]]


@pytest.mark.parametrize(
    ("beyond", "may"),
    [
        (20, f"20 of 20 probes are beyond 0.6 nat, where {ALLOWED:.0%} are allowed"),
        (0, f"0 of 20 probes are beyond 0.6 nat, where {ALLOWED_FAR:.0%} are allowed"),
    ],
)
def test_the_share_that_may_be_beyond_is_that_of_the_floor_which_was_passed(beyond, may):
    """A reference that is noisy may have a floor above what counts as far."""
    state = _state(20)
    found = SeenProbes(
        asked=[str(i) for i in range(20)],
        nats=[0.65 if beyond else 0.55] * 20,
        limit=0.6,
        beyond=beyond,
        far=20,
        listed=True,
    )
    seen = Seen(
        round=1,
        started_at="",
        seconds=0.0,
        asked=[],
        values=[],
        usable="",
        prompt_tokens=[],
        failures={},
        probes=found,
    )
    (alarm,) = judge_probes(state, seen)
    assert alarm.told.endswith(may), alarm.told


def test_a_strong_fault_alarms_in_its_first_round_at_any_time():
    """Fourteen of twenty probes are beyond the floor, at a new watch and after a month."""
    for rounds in (0, 4320):
        state = _state(200)
        state.probes.rounds, state.probes.cycles = rounds, rounds // 10
        asked = choose_probes(state, 20)
        (alarm,) = _play(state, asked, [BEYOND] * 14 + [NEAR] * 6)
        assert "14 of 20 probes are beyond 0.1 nat" in alarm.told
        assert alarm.kind == NUMERICS


@pytest.mark.parametrize(("rounds", "of_20", "of_200"), [(1, 8, 28), (4320, 12, 34)])
def test_an_alarm_takes_these_probes_beyond_the_floor(rounds, of_20, of_200):
    state = _state(200)
    state.probes.rounds, state.probes.cycles = rounds, max(1, rounds // 10)
    for tried, least, span in ((20, of_20, 0), (200, of_200, 1)):
        for beyond, alarms in ((least, True), (least - 1, False)):
            counts = ProbeCounts(tried=tried, beyond=beyond)
            state.probes.latest = state.probes.in_cycle = counts
            nats = bets.weigh_spans(state)[span][0]
            assert (nats >= bets.limit(state, NUMERICS)) is alarms


@pytest.mark.parametrize("place", range(10))
def test_a_strong_fault_alarms_in_its_first_round_anywhere_in_a_cycle(place):
    state = _state(200)
    for _ in range(10 + place):
        assert not _round(state, lambda i: NEAR)
    (alarm,) = _play(state, choose_probes(state, 20), [BEYOND] * 14 + [NEAR] * 6)
    assert alarm.figures["probes"] == 20


def test_a_weaker_fault_alarms_by_the_probes_of_its_cycle():
    """Four of twenty probes are too few in one round, and enough in some of them together."""
    state = _state(200)
    for _ in range(9):
        if alarms := _play(state, choose_probes(state, 20), [BEYOND] * 4 + [NEAR] * 16):
            break
    (alarm,) = alarms
    assert alarm.figures["beyond"] == 4 * state.rounds
    assert 1 < state.rounds < 7


def test_few_very_far_probes_are_named_by_their_share():
    state = _state(200)
    alarms = _play(state, choose_probes(state, 20), [VERY_FAR] * 6 + [NEAR] * 14)
    assert [alarm.figures["far"] for alarm in alarms] == [6]


def test_a_missing_answer_counts_as_one_like_the_reference():
    missing, near = _state(), _state()
    asked = choose_probes(missing, 20)
    _play(missing, asked, [BEYOND] * 3 + [None] * 17)
    _play(near, asked, [BEYOND] * 3 + [NEAR] * 17)
    assert bets.evidence(missing, NUMERICS) == bets.evidence(near, NUMERICS)
    before = missing.probes
    place = before.place
    assert not _round(missing, lambda i: None)
    assert (before.place, before.rounds) == (place, 1)


def test_forgotten_evidence_begins_a_new_cycle():
    state = _state()
    _round(state, lambda i: BEYOND)
    state.probes = forget_probes(state.probes)
    assert bets.evidence(state, NUMERICS) == 0.0
    assert (state.probes.cycle, state.probes.place) == (2, 0)
    assert not _round(state, lambda i: NEAR)


ROUNDS, WATCHES = 40, 100


def _highest(repeats, seed):
    """Return the most evidence against a healthy server at the edge of the hypothesis.

    `repeats`: the same probes are beyond the floor in each cycle. Otherwise each time others are.
    """
    state, rng, highest = _state(100, seed), random.Random(f"{seed}:{repeats}"), 0.0

    def draw(i):
        u = rng.random()
        return VERY_FAR if u < ALLOWED_FAR else BEYOND if u < ALLOWED else NEAR

    def repeat(i):
        return VERY_FAR if i < 1 else BEYOND if i < 5 else NEAR

    for _ in range(ROUNDS):
        _round(state, repeat if repeats else draw)
        highest = max(highest, bets.evidence(state, NUMERICS))
    return highest


@pytest.mark.parametrize("repeats", [False, True])
def test_healthy_watches_at_the_edge_are_accused_in_at_most_the_budgeted_share(
    repeats,
):
    """A level is the chance that the evidence ever exceeds 1 / level."""
    highest = [_highest(repeats, seed) for seed in range(WATCHES)]
    for level, allowed in ((0.002, 0), (0.02, 2), (0.1, 10)):
        assert sum(one >= -math.log(level) for one in highest) <= allowed, level


def test_the_rounds_of_a_long_healthy_watch_at_the_edge_have_half_of_the_budget_exactly():
    """The chance of an alarm by a round is computed for each of 100,000 rounds, and summed."""
    state, total, unshared = _state(100), 0.0, 0.0
    state.probes.cycles = 1
    grid = [1, 2, 3, 5, 10, 20, 50, 100, 300, 1000, 3000, 10_000, 30_000, 100_000]
    for k, after in pairwise(grid):  # Later rounds need more evidence: the bound is from above.
        state.probes.rounds = k
        total += (after - k) * math.fsum(
            chance for chance, counts in _list_rounds(20) if _round_alarms(state, counts)
        )
        unshared += (after - k) * math.fsum(
            chance
            for chance, counts in _list_rounds(20)
            if weigh_probes(counts.tried, counts.beyond, counts.far) >= math.log(1000)
        )
    assert total <= bets.levels(state)[NUMERICS] / 2
    assert unshared > 0.1  # Without the shares the budget would be spent in the first days.


def _round_alarms(state, counts):
    state.probes.latest = counts
    return bets.weigh_spans(state)[0][0] >= bets.limit(state, NUMERICS)


def _list_rounds(tried):
    """Yield what independent probes at the edge of the hypothesis can show, and its chance."""
    near = ALLOWED - ALLOWED_FAR
    for beyond in range(tried + 1):
        for far in range(beyond + 1):
            ways = math.comb(tried, beyond) * math.comb(beyond, far)
            chance = ways * ALLOWED_FAR**far * near ** (beyond - far)
            yield (
                chance * (1 - ALLOWED) ** (tried - beyond),
                ProbeCounts(tried=tried, beyond=beyond, far=far),
            )


@pytest.mark.parametrize(("repeats", "most"), [(True, 0.3), (False, 0.6)])
def test_a_cycle_of_a_healthy_server_at_the_edge_is_within_its_level_exactly(repeats, most):
    """The chance that the evidence of a cycle ever exceeds c is at most 1 / c.

    Looks are after each probe, which is more often than in a watch. A server that repeats itself is
    beyond the floor at the same 5 % of the probes, and the order alone is random.
    """
    for c in (2.0, 20.0, 1000.0):
        assert c * _cross(100, math.log(c), repeats=repeats) <= most


def _cross(count, nats, *, repeats):
    """Return the chance that the evidence of some first probes of a cycle reaches `nats`."""
    beyond, far = round(ALLOWED * count), round(ALLOWED_FAR * count)
    chances, crossed = {(0, 0): 1.0}, 0.0
    for asked in range(count):
        after = {}
        for (hits, fars), chance in chances.items():
            left, fars_left, hits_left = count, far, beyond
            if repeats:
                left, fars_left, hits_left = count - asked, far - fars, beyond - hits
            for step, ways in (
                ((1, 1), fars_left),
                ((1, 0), hits_left - fars_left),
                ((0, 0), left - hits_left),
            ):
                key = hits + step[0], fars + step[1]
                after[key] = after.get(key, 0.0) + chance * ways / left
        over = {key for key, p in after.items() if p and weigh_probes(asked + 1, *key) >= nats}
        crossed += math.fsum(after[key] for key in over)
        chances = {key: p for key, p in after.items() if p > 1e-12 and key not in over}
    return crossed


def test_the_shares_of_all_rounds_and_cycles_are_one_budget():
    """Rounds and cycles have half of it each, so the evidence is that of a share less a half."""
    total = math.fsum(compute_starting_share(k) for k in range(1, 10_000))
    assert 0.8 < total < 1.0
    state = _state(40)
    for k in range(1, 6):
        _round(state, lambda i: NEAR)
        spans = bets.weigh_spans(state)
        cycle = (k + 1) // 2
        assert spans[0][0] == pytest.approx(
            weigh_probes(20, 0, 0) + math.log(compute_starting_share(k) / 2)
        )
        assert spans[1][0] == pytest.approx(
            weigh_probes(20 if k % 2 else 40, 0, 0) + math.log(compute_starting_share(cycle) / 2)
        )
