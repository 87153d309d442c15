from __future__ import annotations

import numpy
import pytest

from serve_eval.stats.onset import ALPHA, SHARE, DriftHold, chart, latest, limit, worse_than_usual


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
