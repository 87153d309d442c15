"""Compare the early stop of many runs at once with the tests that real runs use."""

from __future__ import annotations

import numpy
import pytest

from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import EarlyPaired
from serve_eval.stats.early_repeats import EarlyRepeats, make_blocks
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from tests.stats import calibrate_early_repeats as base
from tests.stats.calibrate_early_repeats import ALPHA, EPS, MAX_MISSING, Cell
from tests.stats.calibrate_early_states import list_states
from tests.stats.early_at_once import stop

RUNS = 6


@pytest.mark.parametrize(
    "cell",
    [
        Cell(198, 1, 0.034, runs=1),
        Cell(198, 1, 0.1, 3.0, runs=1),
        Cell(30, 4, 0.1, runs=4),
        Cell(30, 4, 0.1, 3.0, runs=4),
        Cell(60, 2, 0.1, runs=2),
        Cell(60, 8, 0.2, 0.7, runs=4),
        Cell(60, 8, 0.2, 2.0, runs=4),
    ],
    ids=lambda cell: f"{cell.prompts}x{cell.repeats}-{cell.drop:g}",
)
def test_runs_looked_at_together_stop_where_each_stops_alone(cell: Cell):
    random = numpy.random.default_rng(3)
    then, now = (
        numpy.stack(one)
        for one in zip(*(base.answer(random, cell) for _ in range(RUNS)), strict=True)
    )
    looked_at, passes = stop(cell, then, now)
    for run in range(RUNS):
        test = _look_alone(cell, then[run], now[run])
        assert looked_at[run] == test.looked_at
        if test.decision is not None:
            assert passes[run] == (test.decision is Decision.PASS)


def _look_alone(cell, then, now):
    promise = {"alpha": SPENT_ON_LOOKS * ALPHA, "eps": EPS, "max_missing": MAX_MISSING}
    if cell.repeats == 1:
        test = EarlyPaired(cell.prompts, cell.margin, **promise)
    else:
        noise = float(then.var(axis=0, ddof=1).mean())
        blocks = make_blocks(then.tolist(), cell.repeats, noise)
        test = EarlyRepeats(cell.prompts, cell.repeats, cell.margin, blocks=blocks, **promise)
    for value in (now - then.mean(axis=0)).ravel().tolist():
        if test.update_unit([(value, value)]) is not None:
            break
    return test


def test_the_bound_and_the_goal_of_a_sound_task_are_those_of_the_issue():
    """9.2 times the flip rate over n k margin^2; a third below a quarter, a tenth far away."""
    sound = {(one.cell.prompts, one.cell.repeats): one for one in list_states(points=(0,))}
    assert sound[1319, 1].bound == pytest.approx(9.2 * 0.034 / (1319 * 0.03203**2), rel=1e-3)
    assert sound[1319, 1].goal == pytest.approx(1 / 3)
    assert sound[198, 1].few_missing == pytest.approx(1 - 0.01**0.25)
    far = next(one for one in list_states(points=(10,)) if one.task == "GSM8K")
    assert far.goal == 0.1
