"""The tables of a watch: in small they run, and the page has those that were printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pytest

from tests.stats import calibrate_watch

PAGE = (Path(__file__).resolve().parents[2] / "docs/watch.md").read_text()


def test_the_page_has_rows_for_the_same_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_watch, "RUNS", 2)
    monkeypatch.setattr(calibrate_watch, "LATE", (0,))
    for row in calibrate_watch.falls().splitlines()[2:]:
        assert f"\n{'|'.join(row.split('|')[:3])}|" in PAGE
    printed = re.search(r"^\| 1000 \| 4320 \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| 10 \|$", PAGE, re.MULTILINE)
    assert printed is not None
    assert int(printed[4]) <= 10


def test_healthy_watches_do_not_alarm_and_a_large_fall_is_noticed() -> None:
    random = numpy.random.default_rng(3)
    known = calibrate_watch.watches(random, 30)
    healthy = calibrate_watch.alarms(random, known, 150, 20)
    assert not any(rounds.any() for rounds in healthy.values())
    fallen = calibrate_watch.alarms(random, known, 60, 20, fall=0.3, after=20)
    assert (fallen["accuracy"] > 20).all()
    assert not fallen["failures"].any()
