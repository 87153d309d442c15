"""Test where a decline begins, and how long it holds."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import onset as module
from serve_eval.stats.onset import (
    ALPHA,
    LEAST,
    SHARE,
    DriftHold,
    chart,
    latest,
    limit,
    onset,
    passes,
    worse_than_usual,
)


def _falling(seed: int, before: float, after: float) -> numpy.typing.NDArray[numpy.bool_]:
    random = numpy.random.default_rng(seed)
    return numpy.concatenate([random.random(100) >= before, random.random(300) >= after])


def test_a_fall_from_95_to_50_percent_at_request_100_is_noticed_within_40_requests_in_95_of_100_seeds() -> (  # noqa: E501
    None
):
    found = [onset(_falling(seed, 0.95, 0.5), 0.008) for seed in range(100)]
    assert sum(one is not None and 100 < one.noticed <= 140 for one in found) >= 95
    assert numpy.median([abs(one.since - 101) for one in found if one is not None]) <= 3


def test_healthy_runs_are_accused_no_more_often_than_alpha() -> None:
    random = numpy.random.default_rng(4)
    accused = sum(onset(random.random(400) < 0.2, 0.01) is not None for _ in range(500))
    assert accused <= 5


@pytest.mark.parametrize("share", [0.002, 0.005, 0.01, 0.02])
def test_the_level_holds_where_hardly_anything_is_bad(share: float) -> None:
    """Bad answers are as rare as among prompts that a reference had right."""
    random = numpy.random.default_rng(5)
    assert (
        sum(onset(random.random(400) < share, 0.008) is not None for _ in range(250)) <= 1
    )  # 2 are allowed


def test_the_likeliest_split_and_the_shares_on_both_sides() -> None:
    bad = numpy.array([False] * 60 + [True] * 30 + [False] * 10)
    one = onset(bad, 0.01)
    assert one is not None
    assert (one.since, one.before, one.after) == (61, 0.0, 0.75)
    assert 61 < one.noticed < 75


@pytest.mark.parametrize(
    "bad", [[True] * 100, [False] * 100, [True] * 50 + [False] * 50, [True] * (LEAST - 1), []]
)
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


def _first_above(bad: numpy.typing.NDArray[numpy.bool_], over: float) -> int | None:
    """Compute the whole chart to find what `passes` finds without drawing it."""
    above = numpy.flatnonzero(chart(bad) > over)
    return int(above[0]) if above.size else None


@given(
    st.integers(0, 2**32),
    st.integers(1, 3000),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.5, 14),
    st.integers(4, 512),
)
@settings(max_examples=60, deadline=None)
def test_what_passes_a_limit_is_found_without_drawing_the_chart(
    seed: int, n: int, share: float, rise: float, over: float, block: int
) -> None:
    random = numpy.random.default_rng(seed)
    bad = random.random(n) < share
    bad[n // 2 :] |= random.random(n - n // 2) < rise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SHORTEST_BLOCK", block)
        expected = _first_above(bad, over)
        assert passes(bad, over) == expected
        if expected is not None:
            assert passes(bad, over, expected - 1) == expected
            assert passes(bad[: expected - 1], over) is None


def test_a_limit_that_the_chart_reaches_exactly_is_not_passed() -> None:
    bad = numpy.array([False] * 60 + [True] * 30)
    for at in range(61, 91):
        assert passes(bad[:at], float(chart(bad)[:at].max())) == _first_above(
            bad[:at], float(chart(bad)[:at].max())
        )
    top = float(chart(bad).max())
    assert passes(bad, top) is None
    assert passes(bad, numpy.nextafter(top, 0.0)) == int(chart(bad).argmax())


def test_only_windows_that_may_pass_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy run needs hardly any windows, however long it is.

    Otherwise a long run would cost as much as its whole chart.
    """
    computed = 0

    def counted(*given: Any) -> Any:
        nonlocal computed
        computed += len(given[2])
        return ratio(*given)

    ratio = module._ratio
    monkeypatch.setattr(module, "_ratio", counted)
    n = 40_000
    bad = numpy.random.default_rng(2).random(n) < 0.1
    assert onset(bad, 0.008) is None
    assert computed < n
    chart(bad)
    assert computed > 20 * n


def test_the_limit_rises_with_the_length_of_the_run_and_the_certainty() -> None:
    assert limit(100, 0.01) < limit(1000, 0.01) < limit(1000, 0.001)
    with pytest.raises(ServeEvalError, match="alpha"):
        limit(100, 0.0)


def _hold(
    values: list[float | None], references: list[float] | None = None, *, worst: float = 0.0
) -> DriftHold:
    hold = DriftHold(1000, worst)
    for i, value in enumerate(values):
        hold.add(value, None if references is None else references[i])
    return hold


@pytest.mark.parametrize("n", [0, 5, 9, 20, 21, 400])
def test_the_latest_value_of_the_chart_is_that_of_the_chart(n: int) -> None:
    bad = numpy.random.default_rng(n).random(n) < numpy.linspace(0.1, 0.5, n)
    assert latest(bad) == pytest.approx(chart(bad)[-1])


def test_a_turn_for_the_worse_holds_a_stop_up_and_its_end_lets_it_go() -> None:
    sound = [1.0, 1.0, 1.0, 0.0] * 50
    assert not _hold(sound).holds()
    turned = _hold([*sound, *[0.0] * 12])
    assert turned.holds()
    assert turned.times == 1
    assert not _hold([*sound, *[0.0] * 12, *sound]).holds()


def test_missing_answers_count_as_bad() -> None:
    sound: list[float | None] = [1.0] * 100
    assert _hold([*sound, *[None] * 6]).holds()
    known = _hold([*sound, *[None] * 6], [0.0] * 106)
    assert known.holds()


def test_against_the_reference_a_drop_is_seen_that_hard_questions_hide() -> None:
    """Half of the answers are wrong anyway; then those are wrong that the reference has right."""
    references = [1.0, 0.0] * 100
    candidates: list[float | None] = [*references[:194], *[0.0] * 6]
    assert _hold(candidates, references).holds()
    assert not _hold(candidates).holds()


def test_the_limit_is_the_share_of_the_one_that_alarms() -> None:
    """Add answers one by one: it holds from the first one that lifts the chart above the share."""
    values: list[float | None] = [1.0] * 300
    for _ in range(20):
        values.append(0.0)
        bad = worse_than_usual(numpy.array(values, dtype=float), 0.0)
        assert _hold(values).holds() == (chart(bad)[-1] > SHARE * limit(1000, ALPHA))
