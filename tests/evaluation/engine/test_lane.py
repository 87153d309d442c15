"""Test when withdrawn answers are asked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import Response
from serve_eval.storage.journal import Journal
from tests.evaluation.engine.test_runner import RIGHT, _samples, _task


class _Prefix:
    """Stop once the first `enough` samples have a score without a gap."""

    def __init__(self, accumulator: ScoreAccumulator, enough: int) -> None:
        self._accumulator, self._enough = accumulator, enough

    def look(self) -> bool:
        return all(self._accumulator.score(i) is not None for i in range(self._enough))

    def restart(self) -> None: ...


def _requests(
    folder: Path,
    enough: int,
    total: int,
    withdrawn: dict[int, Sequence[int]],
    *,
    early: bool = True,
) -> int:
    """Return the number of requests of a lane, one at a time, until its early stop decides."""
    accumulator = ScoreAccumulator(_task(), _samples(total))
    stopping = _Prefix(accumulator, enough)
    with Journal(folder / "journal") as journal:
        lane = Lane("a", accumulator, journal, range(total), stopping if early else None)
        asked = 0
        while lane.left and not lane.decided:
            for i in lane.iterate_starts(None):
                accumulator.add(i, RIGHT)
                lane.left, lane.waiting, asked = lane.left - 1, lane.waiting - 1, asked + 1
                gone = withdrawn.get(asked, ())
                found: dict[str, Response] = {
                    f"s{one}": RIGHT for one in gone if accumulator.score(one) is not None
                }
                if found:
                    lane.forget(found)
                assert lane.waiting == lane.left, "no request is under way"
                if stopping.look():
                    lane.decided = True
            if not lane.decided:
                lane.refill(lane.list_missing())
        assert early is False or stopping.look()
        assert lane.waiting >= 0
    return asked


def test_one_withdrawn_answer_costs_an_early_stop_one_request(tmp_path: Path) -> None:
    assert _requests(tmp_path, 20, 2000, {15: [3]}) == 21


@given(st.dictionaries(st.integers(1, 40), st.lists(st.integers(0, 30), max_size=5), max_size=6))
def test_withdrawals_cost_an_early_stop_what_was_withdrawn(
    tmp_path_factory: pytest.TempPathFactory, withdrawn: dict[int, list[int]]
) -> None:
    asked = _requests(tmp_path_factory.mktemp("lane"), 20, 500, withdrawn)
    assert asked <= 20 + sum(map(len, withdrawn.values()))


def test_without_an_early_stop_they_are_asked_at_the_end(tmp_path: Path) -> None:
    assert _requests(tmp_path, 500, 500, {15: [3, 4]}, early=False) == 502


@pytest.mark.parametrize(
    ("enough", "early", "missing"),
    [(4, True, []), (5, True, [4, 6, 7]), (4, False, [4, 6, 7])],
)
def test_a_lane_that_is_decided_without_a_withdrawn_answer_asks_nothing_more(
    tmp_path: Path, enough: int, early: bool, missing: list[int]
) -> None:
    accumulator = ScoreAccumulator(_task(), _samples(8))
    stopping = _Prefix(accumulator, enough) if early else None
    with Journal(tmp_path / "journal") as journal:
        lane = Lane("a", accumulator, journal, range(8), stopping)
        for i in range(6):
            accumulator.add(i, RIGHT)
        lane.forget({"s4": RIGHT})
        assert list(lane.list_missing()) == missing
