"""Test which of several workers or sources is to blame.

Covers exact p-values, deployments with one fault each, and false accusations.

Some routers read the prompts, others do not.
"""

import random
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from math import comb

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.contingency import PERMUTATIONS, Cell, dependence, rows
from serve_eval.stats.no_worse import no_worse, no_worse_in_blocks
from serve_eval.stats.sign_tests import mcnemar, odd_one_out
from serve_eval.stats.together import compare_together

ALPHA = 0.01


def _fisher(answers, bad, others, others_bad):
    """Return the tail of the hypergeometric distribution in whole numbers."""
    total = bad + others_bad
    ways = (comb(answers, k) * comb(others, total - k) for k in range(bad, min(answers, total) + 1))
    return Fraction(sum(ways), comb(answers + others, total))


SIDE = st.integers(0, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@given(SIDE, SIDE)
def test_one_table_is_the_one_sided_test_of_fisher(its, others):
    assert no_worse([(*its, *others)]) == pytest.approx(float(_fisher(*its, *others)), rel=1e-9)


def test_small_tables_have_the_p_that_is_worked_out_by_hand():
    assert no_worse([(3, 3, 3, 0)]) == pytest.approx(1 / 20)
    assert no_worse([(4, 3, 4, 1)]) == pytest.approx(
        17 / 70
    )  # the lady tasting tea (Fisher 1935, chapter 2)
    assert no_worse([(50, 48, 150, 12)]) == pytest.approx(
        3.0105900e-32, rel=1e-6
    )  # scipy.stats.fisher_exact
    assert no_worse([(2, 1, 2, 1), (1, 1, 1, 0)]) == pytest.approx(5 / 6 * 1 / 2 + 1 / 6 * 1 / 2)


@pytest.mark.parametrize(
    "tables", [[], [(0, 0, 5, 3)], [(5, 0, 5, 0)], [(5, 5, 5, 5)], [(4, 0, 9, 7)]]
)
def test_what_cannot_be_worse_has_p_one(tables):
    assert no_worse(tables) == 1.0


@given(st.integers(0, 40), st.integers(0, 40))
def test_two_workers_that_were_asked_the_same_prompts_are_compared_by_mcnemars_exact_test(down, up):
    strata = [(1, 1, 1, 0)] * down + [(1, 0, 1, 1)] * up + [(1, 1, 1, 1), (1, 0, 1, 0)]
    expected = mcnemar(down, up).p_exact if down else 1.0
    assert no_worse(strata) == pytest.approx(expected, rel=1e-9)


def test_counts_that_make_no_table_are_refused():
    with pytest.raises(ServeEvalError, match="do not make a table"):
        no_worse([(3, 4, 5, 1)])


IN_TURNS = {
    "2 x 4": lambda k, _: (k % 2, k % 4),
    "2 x 3": lambda k, _: (k % 2, k % 3),
    "2 x 2": lambda k, _: (k % 2, k % 2),
    "1 x 4": lambda k, _: (0, k % 4),
}
AT_RANDOM = lambda _, rng: (rng.randrange(2), rng.randrange(4))  # noqa: E731


def _cells(router, chance, *, n=400, seed=0):
    rng, counts = random.Random(seed), {}
    for k in range(n):
        context, generation = router(k, rng)
        sums = counts.setdefault((context, generation), [0, 0])
        sums[0] += 1
        sums[1] += rng.random() < chance(context, generation)
    return [Cell(f"c{c}", f"g{g}", *sums) for (c, g), sums in counts.items()]


def _accused(cells, alpha=ALPHA):
    return ["+".join(row.worker) for row in rows({"wrong answers": cells}, alpha) if row.accused]


@pytest.mark.parametrize(
    ("router", "chance", "named"),
    [
        (AT_RANDOM, lambda c, g: 0.2 + 0.6 * (g == 1), ["g1"]),
        (AT_RANDOM, lambda c, g: 0.2 + 0.6 * (c == 1), ["c1"]),
        (AT_RANDOM, lambda c, g: 0.2 + 0.6 * (c == 1 and g == 2), ["c1+g2"]),
        (
            AT_RANDOM,
            lambda c, g: 0.9 if (c == 1) == (g > 1) else 0.1,
            ["c0+g0", "c0+g1", "c1+g2", "c1+g3"],
        ),
        (
            AT_RANDOM,
            lambda c, g: 1 - 0.95 * (1 - 0.5 * (c == 1)) * (1 - 0.5 * (g == 1)),
            ["c1", "g1"],
        ),
        (AT_RANDOM, lambda c, g: 0.2 + 0.6 * (g in (0, 3)), ["g0", "g3"]),
        (AT_RANDOM, lambda c, g: 0.6, []),
        (IN_TURNS["2 x 4"], lambda c, g: 0.2 + 0.6 * (g == 1), ["g1"]),
        (IN_TURNS["2 x 4"], lambda c, g: 0.2 + 0.6 * (c == 1), ["c1"]),
        (IN_TURNS["2 x 3"], lambda c, g: 0.2 + 0.6 * (g == 2), ["g2"]),
        (IN_TURNS["2 x 3"], lambda c, g: 0.2 + 0.6 * (c == 0 and g == 2), ["c0+g2"]),
        (IN_TURNS["2 x 2"], lambda c, g: 0.2 + 0.6 * (g == 1), ["c1+g1"]),
        (IN_TURNS["1 x 4"], lambda c, g: 0.1 + 0.6 * (g == 3), ["g3"]),
        (IN_TURNS["1 x 4"], lambda c, g: 0.7, []),
    ],
)
def test_who_is_to_blame_is_named_and_nobody_else(router, chance, named):
    assert _accused(_cells(router, chance)) == named


def test_workers_that_always_work_together_are_one_row():
    found = rows({"wrong answers": _cells(IN_TURNS["2 x 2"], lambda c, g: 0.3)}, ALPHA)
    assert [(row.role, row.worker) for row in found] == [
        ("pair", ("c0", "g0")),
        ("pair", ("c1", "g1")),
    ]


def test_a_row_has_the_worker_and_all_others_of_its_role():
    cells = [
        Cell("c0", "g0", 50, 48),
        Cell("c0", "g1", 70, 5),
        Cell("c0", "g2", 80, 7),
        Cell("c0", None, 9, 9),
    ]
    first = rows({"wrong answers": cells}, ALPHA)[0]
    assert (first.worker, first.answers, first.bad, first.others, first.others_bad) == (
        ("g0",),
        50,
        48,
        150,
        12,
    )
    assert first.p == pytest.approx(3.0105900e-32, rel=1e-6)
    assert first.p_holm == pytest.approx(3 * first.p)


def test_a_measure_without_any_bad_answer_has_no_rows():
    good = [Cell(None, "g0", 50, 0), Cell(None, "g1", 50, 0)]
    assert not rows({"wrong answers": good, "failures": []}, ALPHA)


def test_the_correction_is_over_all_measures():
    cells = [Cell(None, "g0", 50, 9), Cell(None, "g1", 50, 1)]
    alone = rows({"wrong answers": cells}, ALPHA)
    both = rows({"wrong answers": cells, "failures": cells}, ALPHA)
    assert both[0].p_holm == pytest.approx(2 * alone[0].p_holm)


CELLS = st.lists(
    st.builds(
        lambda c, g, n, share: Cell(c, g, n, round(n * share)),
        st.sampled_from(["c0", "c1", None]),
        st.sampled_from(["g0", "g1", "g2", None]),
        st.integers(0, 40),
        st.floats(0, 1),
    ),
    max_size=8,
)


@given(CELLS)
def test_any_table_gives_probabilities_and_never_more_bad_answers_than_answers(
    cells,
):
    for row in rows({"wrong answers": cells}, ALPHA):
        assert 0.0 <= row.p <= row.p_holm <= 1.0
        assert row.accused == (row.p_holm <= ALPHA)
        assert 0 <= row.bad <= row.answers
        assert 0 <= row.others_bad <= row.others


@given(CELLS, st.randoms())
def test_the_order_of_the_answers_does_not_matter(cells, rng):
    mixed = list(cells)
    rng.shuffle(mixed)
    before, after = rows({"m": cells}, ALPHA), rows({"m": mixed}, ALPHA)
    assert [(r.worker, pytest.approx(r.p, abs=1e-9)) for r in before] == [
        (r.worker, r.p) for r in after
    ]


def test_healthy_workers_are_rarely_accused():
    """Use a level of a fifth, where few rounds suffice: P(Bin(60, 0.2) > 23) is 0.0003."""
    for name, router in {**IN_TURNS, "at random": AT_RANDOM}.items():
        false = sum(
            bool(_accused(_cells(router, lambda c, g: 0.3, n=200, seed=s), 0.2)) for s in range(60)
        )
        assert false <= 23, name


def test_what_a_server_says_alike_with_every_partner_counts_once():
    """Four prompts that one of two healthy servers gets wrong by its own numerics count four times.

    They do not count sixteen times.
    """
    cells = [
        Cell(f"c{c}", f"g{g}", 1, int(prompt < 4 and g == 1), prompt)
        for prompt in range(50)
        for c in range(4)
        for g in range(2)
    ]
    [row] = [row for row in rows({"wrong answers": cells}, ALPHA) if row.worker == ("g1",)]
    assert (row.bad, row.answers, row.p) == (16, 200, pytest.approx(1 / 16))
    assert not row.accused


def test_a_server_that_fails_does_not_make_the_others_look_wrong():
    """g0 answers half of the time; all servers get all prompts wrong.

    The others get more prompts wrong only because they answer.
    """
    cells = [
        Cell(f"c{c}", f"g{g}", 1, 1, prompt)
        for prompt in range(40)
        for c in range(2)
        for g in range(3)
        if g or (c + prompt) % 2
    ]
    assert not [row for row in rows({"wrong answers": cells}, ALPHA) if row.p < 1.0]


@given(st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), max_size=8))
def test_blocks_of_one_answer_each_are_tables_of_one_against_the_others(
    blocks,
):
    tables = [(1, block[0], len(block) - 1, sum(block[1:])) for block in blocks]
    assert no_worse_in_blocks(blocks) == pytest.approx(no_worse(tables), rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], (0, 0, 1.0)),
        ([("a", "bbb")] * 5, (5, 5, 4**-5)),
        ([("a", "bbb")] * 4 + [("a", "aaa")] * 100, (4, 4, 4**-4)),
        ([("a", "bbb"), ("b", "abb"), ("b", "bab")], (3, 1, 1 - 0.75**3)),
        ([("a", "bb")] * 2 + [("a", "bbb")] * 2, (4, 4, 3**-4)),
        ([("a", "b"), ("a", "")], (0, 0, 1.0)),
        ([("a", "bbc"), ("a", "abb"), ("a", "aa")], (0, 0, 1.0)),
    ],
)
def test_rows_with_one_odd_source_count(rows, expected):
    found = odd_one_out(rows)
    assert (found.rows, found.own) == expected[:2]
    assert found.p == pytest.approx(expected[2])


@pytest.mark.parametrize("sources", [3, 4])
@given(data=st.data())
def test_p_is_at_most_the_level_of_any_exchangeable_sources(sources, data):
    """Given the values of each row, each order of the sources is as likely: try all of them."""
    words = st.text("abc", min_size=sources, max_size=sources)
    values = data.draw(st.lists(words, min_size=1, max_size=3 if sources == 4 else 4))
    orders = [sorted(set(permutations(row))) for row in values]
    ps = Counter(
        round(odd_one_out([(own, others) for own, *others in rows]).p, 12)
        for rows in product(*orders)
    )
    for level in ps:
        share = sum(times for p, times in ps.items() if p <= level) / ps.total()
        assert share <= level + 1e-9


KINDS = (numpy.arange(400) // 20).tolist()


def test_routers_that_choose_at_random_are_suspected_no_more_often_than_the_level():
    random = numpy.random.default_rng(5)
    found = [dependence(random.integers(4, size=200).tolist(), KINDS[:200]) for _ in range(200)]
    assert sum(p <= 0.05 for p in found) <= 17  # 10 are expected; more are one case in 100
    assert 60 <= sum(p <= 0.5 for p in found) <= 125


def test_a_router_that_keeps_three_in_ten_requests_with_their_like_is_seen():
    random = numpy.random.default_rng(6)
    for _ in range(10):
        home, stuck = random.integers(4, size=20), random.random(400) < 0.3
        workers = numpy.where(stuck, home[KINDS], random.integers(4, size=400)).tolist()
        assert dependence(workers, KINDS) == 1 / (PERMUTATIONS + 1)


@pytest.mark.parametrize(
    ("workers", "kinds"),
    [
        ([], []),
        (["a"] * 9, list(range(9))),
        (list("abc") * 3, ["one"] * 9),
        (list("ab") * 20, list(range(40))),  # each kind once
        (list("ab") * 200, KINDS),  # taking turns is more even than chance
    ],
)
def test_what_cannot_go_together_is_not_suspected(workers, kinds):
    assert dependence(workers, kinds) == 1.0


def test_many_answers_are_looked_at_evenly():
    subject = (numpy.arange(40_000) // 2000).tolist()
    assert dependence([one % 4 for one in subject], subject) < 0.002


def test_one_kind_per_answer_is_wanted():
    with pytest.raises(ServeEvalError, match="3 workers and 2 kinds"):
        dependence(["a", "b", "a"], [1, 2])


SPANS = [(0.0, 1.0), (10.0, 11.0), (0.5, 1.5), (20.0, 21.0)] + [
    (100.0 + 2 * i, 101.0 + 2 * i) for i in range(6)
]
"""Ten samples of one length, which makes five classes of two. Samples 0 and 2 were in flight
together; their contents are together in one of four permutations."""


def compare(*pairs, alpha=1.0, seed=0, draws=1999):
    strata, weights = ["all"] * len(SPANS), [1.0] * len(pairs)
    return compare_together(SPANS, strata, pairs, weights, alpha=alpha, seed=seed, draws=draws)


def test_p_is_the_share_of_permutations_with_as_much_together():
    found = compare((0, 2))
    assert found.p == pytest.approx(0.25, abs=0.04)
    assert found.expected == pytest.approx(0.25, abs=0.04)


def test_the_pairs_in_flight_together_are_named_by_their_places():
    assert compare((4, 6), (2, 0), (0, 3), (0, 2)).observed == (3, 1)
    none = compare((4, 6))
    assert (none.p, none.observed, none.expected) == (1.0, (), 0.0)


def test_the_test_stops_at_the_first_permutation_that_is_one_too_many():
    """Of 19 draws none may reach what was seen; the first that does is the last, and p is 1/k."""
    found = [compare((0, 2), alpha=0.05, seed=seed, draws=19).p for seed in range(30)]
    assert [1.0 / p for p in found] == pytest.approx([round(1.0 / p) for p in found])
    assert {round(1.0 / p) for p in found} >= {1, 2, 3}
    assert all(p >= 0.1 or p == 0.05 for p in found)


def test_a_test_that_stops_at_a_large_alpha_has_a_p_of_one_at_most():
    strata = [f"{i}" for i in range(len(SPANS))]
    assert compare_together(SPANS, strata, [(0, 2)], [1.0], alpha=0.9, seed=0, draws=19).p == 1.0


def test_contents_are_exchanged_within_their_stratum_alone():
    strata = [f"{i}" for i in range(len(SPANS))]
    found = compare_together(SPANS, strata, [(0, 2)], [1.0], alpha=0.05, seed=0)
    assert (found.p, found.observed, found.expected) == (1.0, (0,), 1.0)


def test_too_few_permutations_for_alpha_are_refused():
    with pytest.raises(ServeEvalError, match="18 permutations"):
        compare((0, 2), alpha=0.05, draws=18)
