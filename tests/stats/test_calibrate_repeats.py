"""Test cells of `make calibrate` about repeats, drawn by a seed, and a small run of its tables."""

from __future__ import annotations

import numpy
import pytest

from serve_eval.stats.drop import drop_test, equal_accuracy_test
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.paired_t import average_largest_gain
from tests.stats import calibrate_repeats as calibrate
from tests.stats.calibrate_repeats import BuildJob, MarginJob, draw_cells, lose

REPLICATES = 150


@pytest.mark.parametrize("moved", [False, True])
def test_a_drop_is_exactly_the_margin(moved: bool) -> None:
    random = numpy.random.default_rng(1)
    before = random.beta(0.5, 0.5, 40)
    after = lose(random, before, 0.07, moved=moved)
    assert before.mean() - after.mean() == pytest.approx(0.07)
    assert (after >= -1e-12).all()


def test_the_drawn_cells_are_those_of_the_seed_and_of_all_sizes() -> None:
    margins, builds = draw_cells()
    assert draw_cells() == (margins, builds)
    assert draw_cells(1) != (margins, builds)
    many = draw_cells(2, 200)[0]
    assert {job.n for job in many} == {10, 20, 40, 80, 200}
    assert {job.k for job in many} == {job.m for job in many} == {1, 2, 3, 5, 8, 16, 64}


@pytest.mark.parametrize("seed", [52, 2026])
def test_margins_of_drawn_cells_keep_their_level(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "REPLICATES", REPLICATES)
    jobs = [job for job in draw_cells(seed, 8)[0] if job.k * job.m * job.n < 20_000][:4]
    for job in jobs:
        found = calibrate.exclude(job)
        if found.of:
            assert found.at_margin <= acceptance_region(found.of, 0.06)[1], job


@pytest.mark.parametrize(
    "job",
    [
        BuildJob("all .03", "steadier", 30, 8, 8),  # sign flips: .37
        BuildJob("all .97", "steadier reference", 30, 8, 8),  # .38
        BuildJob("Beta(.5, 9.5)", "steadier", 30, 8, 8),  # .17
    ],
    ids=lambda job: f"{job.shape} {job.kind}",
)
def test_the_worst_builds_keep_their_level_and_break_that_of_signs(
    job: BuildJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "REPLICATES", REPLICATES)
    found = calibrate.prove(job)
    most = acceptance_region(REPLICATES, 0.05)[1]
    assert found.auto[0] <= most < found.flips[0]


@pytest.mark.parametrize(
    "job", [BuildJob("all .5", "same", 100, 3, 1, 0.1), BuildJob("all .5", "same", 30, 8, 8, 0.08)]
)
def test_the_power_given_up_for_symmetric_differences_is_small(
    job: BuildJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the end of the whole range, 30 prompts with 8 answers would give up 5.4 points."""
    monkeypatch.setattr(calibrate, "REPLICATES", REPLICATES)
    found = calibrate.prove(job)
    assert found.flips[0] - found.auto[0] <= 0.05 * REPLICATES


def test_the_cells_measure_the_automatic_test() -> None:
    job = BuildJob("Beta(.2, .1)", "redrawn", 30, 3, 2)
    random = numpy.random.default_rng(4)
    for _ in range(20):
        pairs = calibrate.draw_build(job, random)
        exchange = drop_test(pairs, "exchange").p
        end = average_largest_gain(pairs, at_best=False)
        equal = equal_accuracy_test(pairs.worst.round(12), end).p_mid
        assert exchange is not None
        assert drop_test(pairs).p == pytest.approx(max(exchange, equal), abs=1e-12)


@pytest.mark.slow
def test_a_small_calibration_prints_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("REPLICATES", 10), ("SUITES", 1), ("DRAWN", 1)):
        monkeypatch.setattr(calibrate, name, value)
    margins = [job for job in calibrate.MARGIN_JOBS if job.k < 64][:2]
    builds, powers = calibrate.BUILD_JOBS[:2], calibrate.POWER_JOBS[-1:]
    monkeypatch.setattr(calibrate, "POWER_JOBS", powers)
    name = next(iter(calibrate.SUITE_JOBS))
    text = calibrate.write_tables(
        margins,
        [calibrate.exclude(job) for job in margins],
        builds,
        [calibrate.prove(job) for job in [*builds, *powers]],
        {name: calibrate.run_suites(name)},
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4 * 2 + 2 + 2 + 1 + 1
    assert {row.count("|") for row in rows} == {8, 9, 10, 4}


def test_a_margin_that_is_no_drop_of_the_shape_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "REPLICATES", 3)
    assert calibrate.exclude(MarginJob("all .12 (floor)", 10, 1, 1, 0.2)).of == 0
