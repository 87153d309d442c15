"""Test that exchangeable sources pass the test of the odd one out at no more than its level."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.stats.sign_tests import odd_one_out

Row = tuple[str, str]
"""A row as its first value, and those of the others."""


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
def test_rows_with_one_odd_source_count(rows: list[Row], expected: tuple[int, int, float]) -> None:
    found = odd_one_out(rows)
    assert (found.rows, found.own) == expected[:2]
    assert found.p == pytest.approx(expected[2])


@pytest.mark.parametrize("sources", [3, 4])
@given(data=st.data())
def test_p_is_at_most_the_level_of_any_exchangeable_sources(
    sources: int, data: st.DataObject
) -> None:
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
