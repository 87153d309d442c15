"""Test that servers with more work are not called slow, and that slow servers are.

Tests cells of the table that `make calibrate` prints, with fewer rounds.
"""

from __future__ import annotations

import numpy
import pytest

from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.evidence.attribution.run_latency import in_run
from tests.stats.calibrate_loaded import compare_all
from tests.stats.loaded_servers import Served, serve

UNEVEN = (0.7, 0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (Served(shares=UNEVEN), "% of the requests, the others "),
        (Served(shares=UNEVEN, queued=True), "% of the requests, the others "),
        (Served(long=0.1, sticky=True), "prompts with 4,000 tokens to compute, the others 200"),
        (Served(cached=True), "prompts with 200 tokens to compute, the others 20"),
    ],
)
def test_a_server_with_more_work_is_more_loaded_and_not_slower(setting: Served, why: str) -> None:
    """Fails if all answers are compared: that calls the server slow in every round."""
    random = numpy.random.default_rng(1)
    rounds = [serve(random, setting) for _ in range(10)]
    assert sum(map(compare_all, rounds)) >= 4
    rows = [row for one in rounds for row in in_run(one)]
    assert not any(row.slow for row in rows)
    loaded = [describe_slow(row) for row in rows if row.loaded]
    assert len(loaded) >= 4
    assert all(one.startswith("more_loaded: generation server g0 takes ") for one in loaded)
    assert all(why in one for one in loaded)
    assert all(one.endswith(": more loaded, and not shown to be slower") for one in loaded)


@pytest.mark.parametrize("setting", [Served(queued=True), Served(prompts=50, spread=1.0)])
def test_a_queue_that_chance_or_repeats_keep_at_a_server_makes_it_not_slow(setting: Served) -> None:
    random = numpy.random.default_rng(2)
    rounds = [serve(random, setting) for _ in range(30)]
    assert sum(map(compare_all, rounds)) >= 5
    assert not any(row.slow for one in rounds for row in in_run(one))


@pytest.mark.parametrize(
    "setting",
    [
        Served(slower=3.0),
        Served(slower=3.0, queued=True),
        Served(slower=3.0, long=0.3),
        Served(slower=5.0, shares=(0.2, 0.4, 0.2, 0.2)),
    ],
)
def test_a_slow_server_is_named_at_its_own_load(setting: Served) -> None:
    random = numpy.random.default_rng(3)
    for _ in range(10):
        [slow] = [row for row in in_run(serve(random, setting)) if row.slow]
        assert slow.worker == "g1"
        assert slow.taken_s > 2 * slow.others_s
