"""Test the worst cells of `make calibrate` for the paired rules, and a small run of its tables."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy
import pytest

from serve_eval.stats.bounds import noninferiority
from serve_eval.stats.drop import drop_test
from serve_eval.stats.multiplicity import acceptance_region, holm
from tests.stats import calibrate_paired as calibrate
from tests.stats.calibrate_paired import Job, beyond, draw, interval, share

REPLICATES = 400


@cache
def _p(job: Job) -> list[float]:
    """Return the p-values of the automatic test in comparisons without a drop."""
    random = numpy.random.default_rng(20261122)
    found = [drop_test(draw(job, random)).p for _ in range(REPLICATES)]
    return [1.0 if p is None else p for p in found]


@pytest.mark.parametrize("level", [0.05, 0.01])
@pytest.mark.parametrize(
    "job",
    [
        Job("all .01", 100, 3),  # Student's t: .212 and .028
        Job("all .01", 100, 10),  # .363 and .336
        Job("all .10", 30, 10),  # .122 and .056
        Job("all .10", 30, 3, half=0.05),
        Job("Beta(.5, 9.5)", 30, 3),  # .151 and .029
        Job("flip rate .034", 198, 10, altered=0.04),  # the exchange test alone: .131 and .051
        Job("flip rate .034", 198, 3, 3, altered=0.04),
        Job("ROUGE-like", 40, 1, texts=True),
    ],
    ids=lambda job: f"{job.name}, {job.before}, {job.after}" if isinstance(job, Job) else None,
)
def test_the_worst_cells_keep_their_level(job: Job, level: float) -> None:
    assert sum(p <= level for p in _p(job)) <= acceptance_region(REPLICATES, level)[1]


def test_the_worst_cell_of_student_is_seen_to_break() -> None:
    """The cells above test nothing if the t test passes them as well."""
    random = numpy.random.default_rng(1)
    job = Job("all .01", 100, 10)
    broken = sum(
        (drop_test(draw(job, random), "paired_t").p or 0.0) <= 0.05 for _ in range(REPLICATES)
    )
    assert broken > 2 * acceptance_region(REPLICATES, 0.05)[1]


@pytest.mark.parametrize("altered", [0.0, 0.04], ids=["the same endpoint", "another build"])
def test_a_suite_of_forty_small_tasks_alarms_at_its_level(altered: float) -> None:
    random = numpy.random.default_rng(3)
    job = Job("Beta(1, 9)", 30) if not altered else Job("flip rate .034", 100, altered=altered)
    alarms = 0
    for _ in range(40):
        alarms += min(holm([drop_test(draw(job, random)).p or 1.0 for _ in range(40)])) <= 0.05
    assert alarms <= 7  # 2 on average; 8 or more has a chance of .0009


@pytest.mark.parametrize(
    "job",
    [
        Job("flip rate .034", 198, 3, drop=0.0827),
        Job("flip rate .034", 198, 1, drop=0.05, half=0.02),
        Job("all .99", 198, 3, everywhere=0.02),
    ],
    ids=["three runs", "half scores", "all nearly right"],
)
def test_a_true_drop_of_the_margin_is_excluded_at_the_level_of_the_bound(job: Job) -> None:
    random = numpy.random.default_rng(7)
    margin = job.drop or 0.99 * job.everywhere
    excluded = sum(noninferiority(draw(job, random), margin, 0.05).holds for _ in range(REPLICATES))
    assert excluded <= acceptance_region(REPLICATES, 0.055)[1]
    assert excluded >= REPLICATES // 100  # a bound that never excludes anything would pass too


def test_an_interval_is_exact_and_marks_what_is_beyond() -> None:
    assert interval(0, 100) == pytest.approx((0.0, 0.0362), abs=1e-4)
    assert interval(8, 100) == pytest.approx((0.0352, 0.1516), abs=1e-4)
    assert beyond(12, 100, 0.05)
    assert not beyond(9, 100, 0.05)
    assert share(12, 100, 0.05) == "**12.00 [6.36, 20.02]**"
    assert share(12, 100) == "12.00 [6.36, 20.02]"


def test_the_prompts_that_anchors_take() -> None:
    assert calibrate.anchor_sizes(0.034) == [4378, 3276, 2655, 1574, 1058]


@pytest.mark.slow
def test_a_small_calibration_prints_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "REPLICATES", 20)
    monkeypatch.setattr(calibrate, "SUITES", 1)
    jobs = {
        "LEVEL_JOBS": calibrate.measure,
        "POWER_JOBS": calibrate.measure,
        "MARGIN_JOBS": calibrate.exclude,
    }
    parts: dict[str, Any] = {}
    for name, simulate in jobs.items():
        few = [job for job in getattr(calibrate, name) if job.n <= 200][:3]
        monkeypatch.setattr(calibrate, name, few)
        parts[name.split("_")[0].lower()] = [simulate(job) for job in few]
    assert parts["level"] == [calibrate.measure(job) for job in calibrate.LEVEL_JOBS]
    name = next(iter(calibrate.SUITE_JOBS))
    parts["suite"] = {name: calibrate.suite(name, 0)}
    rows = [line for line in calibrate.tables(parts).splitlines() if line.startswith("|")]
    assert len(rows) == 5 * 2 + 3 + 3 + 3 + 1 + 3
    assert {row.count("|") for row in rows} == {12, 8, 9, 5, 7}
