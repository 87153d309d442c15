from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.onset import LEAST, chart, limit, onset


def _falling(seed: int, before: float, after: float) -> numpy.typing.NDArray[numpy.bool_]:
    random = numpy.random.default_rng(seed)
    return numpy.concatenate([random.random(100) >= before, random.random(300) >= after])


def test_a_fall_from_95_to_50_percent_at_request_100_is_noticed_within_40_requests_in_95_of_100_seeds() -> None:
    found = [onset(_falling(seed, 0.95, 0.5), 0.008) for seed in range(100)]
    assert sum(one is not None and 100 < one.noticed <= 140 for one in found) >= 95
    assert numpy.median([abs(one.since - 101) for one in found if one is not None]) <= 3


def test_healthy_runs_are_accused_no_more_often_than_alpha() -> None:
    random = numpy.random.default_rng(4)
    accused = sum(onset(random.random(400) < 0.2, 0.01) is not None for _ in range(500))
    assert accused <= 5


@pytest.mark.parametrize("share", [0.002, 0.005, 0.01, 0.02])
def test_the_level_holds_where_hardly_anything_is_bad(share: float) -> None:
    """As among the answers to prompts that a reference had right."""
    random = numpy.random.default_rng(5)
    assert sum(onset(random.random(400) < share, 0.008) is not None for _ in range(250)) <= 1  # 2 are allowed


def test_the_likeliest_split_and_the_shares_on_both_sides() -> None:
    bad = numpy.array([False] * 60 + [True] * 30 + [False] * 10)
    one = onset(bad, 0.01)
    assert one is not None
    assert (one.since, one.before, one.after) == (61, 0.0, 0.75)
    assert 61 < one.noticed < 75


@pytest.mark.parametrize("bad", [[True] * 100, [False] * 100, [True] * 50 + [False] * 50, [True] * (LEAST - 1), []])
def test_nothing_that_turned_worse(bad: list[bool]) -> None:
    assert onset(numpy.array(bad, dtype=numpy.bool_), 0.01) is None


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_the_chart_is_the_largest_likelihood_ratio_over_its_windows(bad: list[bool]) -> None:
    row = numpy.array(bad)

    def likelihood(part: numpy.typing.NDArray[numpy.bool_]) -> float:
        hits, n = int(part.sum()), len(part)
        return sum(k * numpy.log(k / n) for k in (hits, n - hits) if k)

    windows = [8, 10, 13, 17, 22, 29, 38, 50]
    drawn = chart(row)
    assert drawn[0] == drawn[1] == 0.0
    for end in range(2, len(row) + 1):
        ratios = [0.0]
        for window in (w for w in windows if w < end):
            early, late = row[: end - window], row[end - window : end]
            if late.mean() > early.mean():
                ratios.append(likelihood(early) + likelihood(late) - likelihood(row[:end]))
        assert drawn[end] == pytest.approx(max(ratios), abs=1e-9)


def test_the_limit_rises_with_the_length_of_the_run_and_the_certainty() -> None:
    assert limit(100, 0.01) < limit(1000, 0.01) < limit(1000, 0.001)
    with pytest.raises(ServeEvalError, match="alpha"):
        limit(100, 0.0)
