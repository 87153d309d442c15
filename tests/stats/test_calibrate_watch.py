"""Test a small run of the tables of a watch; the page has the printed tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pytest

from tests.stats import calibrate_watch

PAGE = (Path(__file__).resolve().parents[2] / "docs/watch.md").read_text()


@pytest.mark.slow
def test_the_page_has_rows_for_the_same_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_watch, "RUNS", 2)
    monkeypatch.setattr(calibrate_watch, "LATE", (0,))
    monkeypatch.setattr(calibrate_watch, "BASELINES", 2)
    monkeypatch.setattr(calibrate_watch, "VARYING", 2)
    monkeypatch.setattr(calibrate_watch, "VARYING_ROUNDS", 20)
    for table, cells in (("falls", 4), ("floors", 4), ("dependent", 3)):
        for row in getattr(calibrate_watch, table)().splitlines()[2:]:
            assert f"\n{'|'.join(row.split('|')[:cells])}|" in PAGE
    printed = re.search(
        r"^\| 1000 \| 4320 \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| 10 \|$", PAGE, re.MULTILINE
    )
    assert printed is not None
    assert int(printed[4]) <= 10


def test_healthy_watches_do_not_alarm_and_a_large_fall_is_noticed() -> None:
    random = numpy.random.default_rng(3)
    known = calibrate_watch.watches(random, 30)
    healthy = calibrate_watch.alarms(random, known, 150, 20)
    assert not any(rounds.any() for rounds in healthy.values())
    for means in (False, True):
        fallen = calibrate_watch.alarms(
            random, known, 60, 20, fall=0.3, after=20, round_means=means
        )
        assert (fallen["accuracy"] > 20).all()
        assert not fallen["failures"].any()


def test_rounds_that_are_worse_as_a_whole_are_no_alarm_where_their_means_are_bet_on() -> None:
    random = numpy.random.default_rng(4)
    known = calibrate_watch.varying(random, 30, 60, calibrate_watch.sometimes_worse)
    shares = []
    for means in (False, True):
        found = calibrate_watch.alarms(
            random,
            known,
            300,
            60,
            round_means=means,
            state=calibrate_watch.sometimes_worse,
            failed_share=0.0,
        )
        shares.append((found["accuracy"] > 0).mean())
    assert shares[0] > 0.3
    assert shares[1] == 0.0
