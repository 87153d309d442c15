"""Test bets that run without end: their gain, exact errors and power."""

import math
from itertools import combinations, product

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import betting
from serve_eval.stats.betting import GRID, log_wealth, mean_lower_bound
from serve_eval.stats.distances import log_evidence_above, log_evidence_below, share_upper_bound
from serve_eval.stats.early_stop import Wealth
from tests.stats.simulation import endpoints, run

MIXED = [0, 0, -1, 0, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
DOWN = [-1, 0, -1, -1, 0, -1, 0, -1, -1, -1]
REAL = [0.1, -0.4, 0.25, 0, -0.05, 0.3, -0.9, 0.2]

# differences, null, evidence for -> log wealth at the end, its maximum; by a plain loop
CASES = [
    ([0.0] * 60, -0.0275, "pass", 0.807534074178761, 0.807534074178761),
    ([0.0] * 60, 0.0, "fail", 0.0, 0.0),
    (MIXED, -0.0275, "pass", -0.3089009793424417, 0.021464760844944954),
    (MIXED, 0.0, "fail", -0.4144721020685224, 0.32208349916911344),
    (DOWN, -0.01817, "pass", -1.2395034553334516, -0.4743815300729676),
    (DOWN, 0.0, "fail", 3.2871229575033527, 3.2871229575033527),
    (REAL, -0.0275, "pass", -0.2961108988481167, 0.09710822125314472),
    (REAL, 0.0, "fail", 0.07097445116460271, 0.1571581706831996),
]


def _both_ways(differences, null, side, last, largest, within):
    sign = 1.0 if side == "pass" else -1.0
    wealth, logs = Wealth(sign * null, None, -1.0, 1.0), []
    for difference in differences:
        wealth.bet(sign * difference)
        logs.append(wealth.log)
    assert logs[-1] == pytest.approx(last, abs=within)
    assert max(logs) == pytest.approx(largest, abs=within)
    assert log_wealth(sign * numpy.array(differences, dtype=float), sign * null) == pytest.approx(
        last, abs=within
    )


@pytest.mark.parametrize(("differences", "null", "side", "last", "largest"), CASES)
def test_the_wealth_equals_a_plain_loop(differences, null, side, last, largest):
    _both_ways(differences, null, side, last, largest, 1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors):
    for vector in vectors("betting"):
        inputs, expected = vector["inputs"], vector["expected"]
        assert tuple(inputs["grid"]) == GRID
        assert inputs["population"] is None
        _both_ways(
            inputs["differences"],
            inputs["null"],
            inputs["evidence_for"],
            expected["log_wealth_last"],
            expected["log_wealth_max"],
            vector["tolerance"],
        )


VALUES = st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.0, 0.0, 0.4, 1.0]), min_size=1, max_size=60)


@given(VALUES, st.sampled_from([0.2, 0.05, 0.001]))
def test_the_bound_lies_below_the_mean_and_its_test_rejects_exactly_at_it(values, alpha):
    lower = mean_lower_bound(values, alpha)
    assert -1.0 <= lower <= float(numpy.mean(values)) + 1e-12
    if lower > -1.0:
        assert log_wealth(values, lower - 1e-6) >= -math.log(alpha) - 1e-4
        assert log_wealth(values, lower + 1e-6) <= -math.log(alpha) + 1e-4


@given(VALUES, st.data())
def test_a_better_value_never_lowers_the_bound(values, data):
    place = data.draw(st.integers(0, len(values) - 1))
    better = [1.0 if i == place else value for i, value in enumerate(values)]
    assert mean_lower_bound(better, 0.05) >= mean_lower_bound(values, 0.05) - 1e-12


def test_identical_answers_say_little_when_they_are_few():
    assert mean_lower_bound([0.0], 0.05) < -0.9
    assert mean_lower_bound([0.0] * 1000, 0.05) == pytest.approx(-0.0046, abs=2e-4)


def test_an_impossible_hypothesis_is_refuted_and_an_empty_one_is_not():
    assert log_wealth([0.0], -1.0) == math.inf
    assert log_wealth([-1.0], -1.0) == 0.0
    assert log_wealth([1.0], 1.0) == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "one or more"), ([1.5], r"outside -1\.\.1"), ([math.nan], "position 0 is nan")],
)
def test_values_outside_the_range_are_refused(values, message):
    with pytest.raises(ServeEvalError, match=message) as caught:
        log_wealth(values, 0.0)
    assert caught.value.hint


def test_the_bound_checks_its_level():
    with pytest.raises(ServeEvalError, match="alpha"):
        mean_lower_bound([0.0], 0.0)


ALPHA = 0.01


def _cross(evidence, share, true, n):
    """Return the exact probability that the evidence ever exceeds 1 / ALPHA within n probes."""
    need, alive, crossed = -math.log(ALPHA), {0: 1.0}, 0.0
    for k in range(1, n + 1):
        after = {}
        for hits, p in alive.items():
            for more, chance in ((0, 1 - true), (1, true)):
                if evidence(hits + more, k - hits - more, share) >= need:
                    crossed += p * chance
                else:
                    after[hits + more] = after.get(hits + more, 0.0) + p * chance
        alive = after
    return crossed


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1])
@pytest.mark.parametrize("part", [1.0, 0.5, 0.1])
def test_a_true_hypothesis_is_rejected_at_the_level_at_most_over_all_looks(share, part):
    assert _cross(log_evidence_above, share, share * part, 100) <= ALPHA
    more = share + (1 - share) * (1 - part)
    assert _cross(log_evidence_below, share, more, 100) <= ALPHA


@pytest.mark.parametrize(
    ("share", "true", "n", "power"),
    [(0.05, 0.54, 20, 0.99), (0.05, 0.8, 8, 0.98), (0.05, 0.2, 100, 0.95), (0.01, 0.08, 120, 0.8)],
)
def test_a_false_hypothesis_is_found_soon(share, true, n, power):
    assert _cross(log_evidence_above, share, true, n) >= power


def test_a_share_without_hits_is_bounded():
    assert share_upper_bound(0, 48, ALPHA) > 0.095 > share_upper_bound(0, 50, ALPHA)
    assert share_upper_bound(0, 0, ALPHA) == 1.0
    assert share_upper_bound(5, 0, ALPHA) == 1.0
    bounds = [share_upper_bound(hits, 100 - hits, ALPHA) for hits in range(20)]
    assert bounds == sorted(bounds)
    assert all(bound > hits / 100 for hits, bound in enumerate(bounds))


@pytest.mark.parametrize(("hits", "misses", "share"), [(-1, 2, 0.1), (1, -1, 0.1), (1, 1, 0.0)])
def test_what_is_no_count_or_share_is_refused(hits, misses, share):
    for evidence in (log_evidence_above, log_evidence_below):
        with pytest.raises(ServeEvalError, match="do not fit"):
            evidence(hits, misses, share)


def test_the_shares_of_all_rounds_sum_to_one():
    begun = [betting.compute_starting_share(t) for t in range(1, 5001)]
    assert min(begun) > 0.0
    assert math.isclose(math.fsum(begun) + betting.compute_waiting_share(5000), 1.0)
    assert betting.compute_waiting_share(0) == 1.0
    with pytest.raises(ServeEvalError):
        betting.compute_starting_share(0)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6),
    st.integers(1, 4),
)
def test_no_stake_grows_on_average_where_the_pool_is_as_good_as_the_hypothesis_says(prompts, asked):
    """Enumerate every subset and every answer.

    Prompts have a chance of a right answer and any usual score.
    """
    null = math.fsum(chance - usual for chance, usual in prompts) / len(prompts)
    if null > 0.95:
        return
    subsets = list(combinations(prompts, min(asked, len(prompts))))
    mean = numpy.zeros(len(GRID))
    for subset in subsets:
        growth = numpy.ones(len(GRID))
        for chance, usual in subset:
            right, wrong = (
                numpy.exp(betting.gains([value - usual], null, 1.0)) for value in (1.0, 0.0)
            )
            growth *= chance * right + (1.0 - chance) * wrong
        mean += growth / len(subsets)
    assert (mean <= 1.0 + 1e-9).all()


def test_the_recursion_is_the_mixture_over_all_beginnings():
    random = numpy.random.default_rng(0)
    gained = random.normal(size=(7, len(GRID)))
    logs = numpy.full(len(GRID), -numpy.inf)
    for t, one in enumerate(gained, 1):
        logs = betting.grow(logs, t, one)
    wealth = betting.compute_waiting_share(7)
    for k in range(1, 8):
        wealth += betting.compute_starting_share(k) * float(
            numpy.exp(gained[k - 1 :].sum(axis=0)).mean()
        )
    assert math.isclose(float(betting.log_evidence(logs, 7)), math.log(wealth))


def test_a_change_is_noticed_after_months_of_healthy_rounds():
    logs, t = numpy.full(len(GRID), -numpy.inf), 0
    good, bad = [0.0] * 20, [0.0] * 12 + [-1.0] * 8
    for _ in range(20_000):
        t += 1
        logs = betting.grow(logs, t, betting.gains(good, -0.03, 1.0))
    assert betting.log_evidence(logs, t) < 0.0
    for _ in range(8):
        t += 1
        logs = betting.grow(logs, t, betting.gains(bad, -0.03, 1.0))
    assert betting.log_evidence(logs, t) >= math.log(200.0)


def test_many_watches_are_played_at_once_as_each_alone():
    values = numpy.array([[0.0, -1.0], [0.5, 0.0]])
    together = betting.gains(values, [-0.1, 0.2], 1.0)
    for row, null, found in zip(values, (-0.1, 0.2), together, strict=True):
        assert numpy.allclose(betting.gains(row, null, 1.0), found)
    assert (betting.gains([], 0.0, 1.0) == 0.0).all()


def test_there_is_no_bet_against_what_cannot_be_missed():
    with pytest.raises(ServeEvalError, match="can be exceeded"):
        betting.gains([0.0], 1.0, 1.0)


@given(st.integers(1, 12), st.data())
def test_a_spread_subset_holds_every_place_equally_often(n, data):
    """Try starts from 0 to 1 in small steps.

    No boundary between two subsets is inside a step.
    """
    asked = data.draw(st.integers(1, n))
    steps = 4 * math.lcm(n, asked)
    subsets = [betting.spread_subset(n, asked, (start + 0.5) / steps) for start in range(steps)]
    assert all(len(set(subset)) == asked for subset in subsets)
    counts = [sum(place in subset for subset in subsets) for place in range(n)]
    assert counts == [steps * asked // n] * n
    last = betting.spread_subset(n, asked, 1.0 - 2.0**-53)
    assert len(set(last)) == asked
    assert max(last) < n


@pytest.mark.parametrize(
    ("n", "asked", "start"), [(3, 4, 0.0), (3, 0, 0.0), (3, 1, 1.0), (3, 1, -0.1)]
)
def test_a_subset_that_cannot_be_chosen_is_refused(n, asked, start):
    with pytest.raises(ServeEvalError):
        betting.spread_subset(n, asked, start)


@given(st.lists(st.integers(0, 8).map(lambda right: right / 8), min_size=1, max_size=9), st.data())
def test_no_subset_has_more_room_than_the_highest_mean(usual, data):
    asked = data.draw(st.integers(1, len(usual)))
    highest = betting.highest_mean(usual, asked)
    start = data.draw(st.floats(0.0, 1.0, exclude_max=True))
    ordered = sorted(usual)
    mean = (
        sum(1.0 - ordered[place] for place in betting.spread_subset(len(usual), asked, start))
        / asked
    )
    assert mean <= highest + 1e-12
    assert highest >= 1.0 - sum(usual) / len(usual) - 1e-12


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=2, max_size=6),
    st.integers(1, 4),
    st.floats(0, 1),
)
def test_a_bet_on_a_rounds_mean_does_not_grow_whatever_its_answers_share(prompts, most, share):
    """Enumerate all rounds exactly.

    In a share of the rounds every answer is right. In the others the chances make the mean over the
    rounds as good as the hypothesis says. Answer by answer, the same rounds let the wealth grow.
    """
    prompts = sorted(prompts, key=lambda prompt: prompt[1])
    usual = [known / 4 for _, known in prompts]
    n, asked = len(prompts), min(most, len(prompts))
    mean = math.fsum(share + (1.0 - share) * chance for chance, _ in prompts) / n
    null = mean - math.fsum(usual) / n
    highest = betting.highest_mean(usual, asked)
    if null > highest - 0.05:
        return
    steps = 2 * math.lcm(n, asked)
    wealth = numpy.zeros(len(GRID))
    for start in range(steps):
        subset = betting.spread_subset(n, asked, (start + 0.5) / steps)
        for good, weight in ((True, share), (False, 1.0 - share)):
            for right in product((0.0, 1.0), repeat=asked):
                chance = weight
                for place, value in zip(subset, right, strict=True):
                    p = 1.0 if good else prompts[place][0]
                    chance *= p if value else 1.0 - p
                if chance:
                    value = (
                        math.fsum(x - usual[place] for place, x in zip(subset, right, strict=True))
                        / asked
                    )
                    wealth += chance * numpy.exp(betting.gains([value], null, highest)) / steps
    assert (wealth <= 1.0 + 1e-9).all()
    assert (wealth >= 1.0 - 1e-9).all()  # nothing is wasted either


def test_the_floor_is_below_the_mean_and_nearer_to_it_with_more_passes():
    few, many = (betting.floor(numpy.ones((passes, 200)), 0.002) for passes in (2, 8))
    assert few < many < 1.0
    assert 1.0 - many < (math.log(500) + 2.5) / 1400
    assert betting.floor(numpy.zeros((3, 50)), 0.002) == 0.0


def test_the_floor_is_where_the_wealth_of_all_passes_reaches_the_limit():
    """Compute by hand: each answer less the mean of the same prompt's earlier ones."""
    random = numpy.random.default_rng(2)
    scores = (random.random((5, 40)) < random.random(40) ** 0.2).astype(float)

    def wealth(chance):
        total = numpy.ones(len(GRID))
        for t in range(1, 5):
            usual = scores[:t].mean(axis=0)
            null = chance - usual.mean()
            for value in scores[t] - usual:
                total *= 1.0 + numpy.minimum(GRID, 1.0 / (1.0 + null)) * (value - null)
        return float(total.mean())

    floor = betting.floor(scores, 0.01)
    assert 0.5 < floor < scores.mean()
    assert wealth(floor) == pytest.approx(100.0, rel=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_floor_is_too_high_no_more_often_than_it_says(shift):
    """Answers may follow those of the pass before.

    A prompt that was wrong at first is then wrong more often.
    """
    random, over, trials = numpy.random.default_rng(1), 0, 300
    for _ in range(trials):
        chances = numpy.where(random.random(30) < 0.5, 1.0, random.random(30))
        first = (random.random(30) < chances).astype(float)
        later = chances - shift * (first == 0.0) * chances
        scores = numpy.vstack([first, (random.random((3, 30)) < later).astype(float)])
        over += betting.floor(scores, 0.1) > max(chances.mean(), later.mean())
    assert over <= 45  # binomial(300, .1): more with probability .002


def test_the_floor_is_nearer_than_against_the_first_pass_alone():
    random, nearer = numpy.random.default_rng(5), []
    for _ in range(40):
        scores = run(
            random,
            numpy.broadcast_to(endpoints(random, 200, flip_rate=0.1, accuracy=0.7), (8, 200)),
        )
        first = float(scores[0].mean()) + mean_lower_bound((scores[1:] - scores[0]).ravel(), 0.002)
        nearer.append(betting.floor(scores, 0.002) - first)
    assert numpy.mean(nearer) > 0.004


@pytest.mark.parametrize(
    "scores", [[[1.0, 0.0]], [1.0, 0.0], [[], []], [[1.0], [1.5]], [[1.0], [math.nan]]]
)
def test_passes_that_make_no_floor_are_refused(scores):
    with pytest.raises(ServeEvalError) as caught:
        betting.floor(scores, 0.01)
    assert caught.value.hint
