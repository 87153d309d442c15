"""Test that every fault of the stand-in is found and named, and a healthy pair is not accused."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from scipy.stats import binom

from serve_eval.workflows.attribute import SAMPLES
from tests.detectors.detectors import (
    ALARM,
    ASKED,
    ATTRIBUTION,
    COMPARE,
    COUNTS,
    DIAGNOSE,
    FAULTS,
    SOUND,
    Fault,
    findings,
    tried,
)

(
    CORRUPT,
    SERVER,
    PAIR,
    STREAMS,
    ALL_REFUSED,
    SOME_REFUSED,
    SLOW_LEG,
    SLOW_SERVER,
    LOST_FROM,
    LOST,
) = FAULTS
DROP = {(COMPARE, "FAIL"), (COMPARE, "more_flips")}
FOUND = {
    CORRUPT: DROP | {(ALARM, "value"), (DIAGNOSE, "drift")},
    SERVER: (
        DROP
        | {(ATTRIBUTION, "generation by wrong answers"), (ASKED, "generation by wrong answers")}
    ),
    PAIR: {(COMPARE, "FAIL"), (ASKED, "pair by wrong answers")},
    STREAMS: {(COMPARE, "more_failures"), (COUNTS, "asked again"), (DIAGNOSE, "repaired")},
    ALL_REFUSED: {
        (COUNTS, "the run stops, exit code 4"),
        (DIAGNOSE, "wrapped_400"),
        (ASKED, "generation by failures"),
    },
    SOME_REFUSED: {(COUNTS, "hidden retries"), (DIAGNOSE, "hidden_retries")},
    LOST_FROM: (
        DROP
        | {(ALARM, "empty answers"), (DIAGNOSE, "empty"), (DIAGNOSE, "worker")}
        | {(ATTRIBUTION, "generation by empty answers"), (ASKED, "generation by empty answers")}
    ),
    LOST: {(COMPARE, "FAIL"), (DIAGNOSE, "empty"), (COUNTS, "empty")},
}
"""Minimal findings among 400 prompts; docs/measured/compare-detectors.md has the whole table."""
SLOW = {
    SLOW_LEG: {(COMPARE, "slower"), (ASKED, "slow_leg generation")},
    SLOW_SERVER: {
        (COMPARE, "uneven"),
        (ATTRIBUTION, "slow_worker generation"),
        (ASKED, "slow_worker generation"),
        (DIAGNOSE, "slow_worker"),
    },
}
BY_THE_CLOCK = re.compile("slower|uneven|slow_")
"""Findings that a busy machine also causes if an orchestrator and six servers share it."""
ROUNDS, PROMPTS = 200, 100


def said(found):
    return {(one.detector, one.name) for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FOUND, ids=lambda fault: fault.name)
def test_a_fault_is_found_and_named(fault, tmp_path):
    found = findings(tried(fault, 400, 1, tmp_path / "out", samples=SAMPLES))
    assert said(found) >= FOUND[fault], found
    assert not any("not the one" in one.name for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("fault", SLOW, ids=lambda fault: fault.name)
def test_a_slow_leg_and_a_slow_server_are_found_and_named(fault, tmp_path):
    """The servers are much slower than a busy machine makes a healthy one."""
    found = findings(
        tried(replace(fault, faulty={"latency_s": 2.0}), 100, 1, tmp_path / "out", samples=20)
    )
    assert said(found) >= SLOW[fault], found
    assert not any("not the one" in one.name for one in found)


def test_a_bad_generation_server_is_found_among_a_hundred(tmp_path):
    found = findings(tried(SERVER, 100, 1, tmp_path / "out", samples=20))
    assert said(found) >= DROP | {(ASKED, "generation by wrong answers")}


def test_a_healthy_pair_is_left_alone(tmp_path):
    found = findings(tried(SOUND, 100, 1, tmp_path / "out", samples=20))
    assert [one for one in found if not BY_THE_CLOCK.match(one.name)] == []


@pytest.mark.slow
def test_a_healthy_pair_is_accused_no_more_often_than_alpha_says(tmp_path):
    """Run 200 rounds with 3 % of flips on either side: FAIL at .05, everything else at .01."""
    counts = Counter()
    for seed in range(ROUNDS):
        counts.update(said(findings(tried(SOUND, PROMPTS, seed, tmp_path / str(seed)))))
    print(f"of {ROUNDS} healthy pairs: {dict(counts)}")
    for (detector, name), count in counts.items():
        if not BY_THE_CLOCK.match(name):
            assert count <= binom.ppf(0.999, ROUNDS, 0.05 if name == "FAIL" else 0.01), (
                detector,
                name,
            )


@pytest.mark.slow
def test_a_fall_from_95_to_50_percent_is_noticed_within_40_requests(tmp_path):
    """Let the fall start at request 100 of 400, over sockets.

    tests.stats.calibrate_onset has the rate over many seeds.
    """
    fall = Fault(name="half of what was right", faulty={"corrupt_after": 25, "share": 0.45 / 0.95})
    after = []
    for seed in range(20):
        trial = tried(fall, 400, seed, tmp_path / str(seed), again=0, accuracy=0.95)
        assert trial.comparison is not None
        after += [one.noticed - 100 for one in trial.degradations if one.measure == "value"]
    print(f"of 20 runs {len(after)} noticed, after {sorted(after)} requests")
    assert sum(0 < delay <= 40 for delay in after) >= binom.ppf(0.001, 20, 0.95)
