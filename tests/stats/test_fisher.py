"""Fisher's exact test against scipy's, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.fisher import fisher_larger


def test_the_lady_tasting_tea() -> None:
    """Four of four right out of eight cups, four of each kind: 1/70 (Fisher 1935, chapter 2)."""
    assert fisher_larger(4, 4, 0, 4) == pytest.approx(1 / 70)
    assert fisher_larger(3, 4, 1, 4) == pytest.approx(17 / 70)


@given(st.integers(0, 60), st.integers(0, 60), st.data())
def test_it_agrees_with_scipy(of: int, others: int, data: st.DataObject) -> None:
    from scipy.stats import fisher_exact

    hits, other_hits = data.draw(st.integers(0, of)), data.draw(st.integers(0, others))
    told = fisher_larger(hits, of, other_hits, others)
    table = [[hits, of - hits], [other_hits, others - other_hits]]
    assert told == pytest.approx(fisher_exact(table, alternative="greater").pvalue, rel=1e-7, abs=1e-300)


def test_an_empty_group_tells_nothing() -> None:
    assert fisher_larger(0, 0, 3, 9) == 1.0
    assert fisher_larger(3, 9, 0, 0) == 1.0


@pytest.mark.parametrize("counts", [(3, 2, 0, 0), (0, 0, 1, 0), (-1, 2, 0, 0)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ServeEvalError):
        fisher_larger(*counts)
