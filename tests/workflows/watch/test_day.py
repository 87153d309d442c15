"""A baseline that does not cover the day says so, and one that does expects its worst hours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from serve_eval.workflows.watch import bets
from serve_eval.workflows.watch import bets as day
from serve_eval.workflows.watch.bets import ACCURACY
from serve_eval.workflows.watch.document import describe_unjudged, say_gap
from tests.workflows.watch.simulated_day import DAY, NIGHT, START, Watch, by_day


def test_a_baseline_of_one_night_accuses_the_day_and_says_that_it_may_not() -> None:
    watch = Watch(NIGHT, 1)
    assert watch.learn(by_day(0.1)) == 24  # four hours
    said = say_gap(watch.state, watch.rules)
    assert said == (
        "the baseline has no answer from 06:00 to 24:00 UTC: a fall at these hours may be the usual"
        " course of a day, and is no proof of a fault (--set watch.baseline_hours=24 covers a day)"
    )
    (alarm,) = watch.play(by_day(0.5), 144)
    assert alarm.kind == ACCURACY
    assert "; the baseline has no answer from 09:00 to 12:00 UTC, so this may be" in alarm.told


def test_a_fault_at_an_hour_that_the_baseline_knows_is_an_alarm_without_doubt() -> None:
    watch = Watch(NIGHT, 2, START + timedelta(hours=20))
    watch.learn(by_day(0.0))
    watch.at = START + timedelta(days=1, hours=21)
    (alarm,) = watch.play(lambda at: 0.33, 12)
    assert alarm.kind == ACCURACY
    assert "usual course" not in alarm.told


def test_a_baseline_goes_on_until_it_covers_the_hours_in_whole_passes() -> None:
    watch = Watch(DAY, 3)
    watch.play(by_day(0.1), 100)
    assert watch.state.accuracy is None
    assert describe_unjudged(watch.state, watch.rules) == (
        "Accuracy was not judged: the baseline does not cover 24 hours yet. Resume with the same"
        " command."
    )
    assert watch.learn(by_day(0.1)) >= 145
    assert len({len(scores) for scores in watch.state.answers}) == 1
    assert say_gap(watch.state, watch.rules) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_daily_loss_that_the_baseline_covers_is_no_alarm(seed: int) -> None:
    watch = Watch(DAY, seed)
    watch.learn(by_day(0.1))
    assert not watch.play(by_day(0.1), 7 * 144)


def test_and_a_loss_beyond_it_is_one() -> None:
    watch = Watch(DAY, 1)
    watch.learn(by_day(0.1))
    found = watch.play(lambda at: 0.55, 2 * 144)
    assert [alarm.kind for alarm in found] == [ACCURACY]


def test_the_floor_is_that_of_the_worst_block() -> None:
    # 800 answers in the worst block, all of them wrong in one answer of ten.
    answers = [[1.0] * 10 for _ in range(400)]
    blocks = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 3] for _ in range(400)]
    for i in range(0, 400, 10):
        answers[i][3] = answers[i][9] = 0.0
    floor = day.find_worst_floor(answers, blocks, bets.FLOOR_ALPHA[ACCURACY])
    assert 0.80 < floor < 0.90
    alike = [[1.0] * 10 for _ in range(400)]
    assert day.find_worst_floor(alike, blocks, bets.FLOOR_ALPHA[ACCURACY]) > 0.97


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([0, 1, 7], "00:00 to 06:00 and 21:00 to 24:00 UTC"),
        ([3], "09:00 to 12:00 UTC"),
        (list(range(8)), "00:00 to 24:00 UTC"),
        ([0, 2, 4], "00:00 to 03:00, 06:00 to 09:00 and 12:00 to 15:00 UTC"),
    ],
)
def test_blocks_are_named_by_their_hours(blocks: list[int], words: str) -> None:
    assert day.describe_blocks(blocks) == words


def test_times_of_other_zones_are_in_utc() -> None:
    assert day.find_block("2026-01-01T01:00:00+02:00") == 7
