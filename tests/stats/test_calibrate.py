"""Test small runs and worst cells of `make calibrate`, and that docs/measured/ has its tables."""

from __future__ import annotations

import re
from functools import cache

import numpy
import pytest

from serve_eval.stats.bounds import noninferiority
from serve_eval.stats.drop import drop_test, equal_accuracy_test
from serve_eval.stats.multiplicity import acceptance_region, holm
from serve_eval.stats.paired_t import average_largest_gain
from tests.measured import HEAD, MEASURED
from tests.stats import (
    calibrate,
    calibrate_all,
    calibrate_drift,
    calibrate_flips,
    calibrate_onset,
    calibrate_paired,
    calibrate_repeats,
    calibrate_requests,
    calibrate_watch,
    calibrate_workers,
)
from tests.stats.calibrate_paired import Job, beyond, draw, interval, share
from tests.stats.calibrate_repeats import BuildJob, MarginJob, draw_cells, lose

PAGE = (MEASURED / "method-typical.md").read_text()


def test_a_small_calibration_prints_the_tables_of_the_method(
    monkeypatch,
):
    for name in ("REPLICATES", "FEWER", "CHUNK"):
        monkeypatch.setattr(calibrate, name, 40)
    jobs = calibrate.jobs_of("JSON", 100, 0.034)
    found = {job: calibrate.measure(job) for job in jobs.values()}
    assert found == {job: calibrate.measure(job) for job in jobs.values()}
    assert found[jobs["0"]]["classic"] == 0.0
    assert found[jobs["theta"]]["classic"] > 0.5
    assert found[jobs["theta"]]["permutation"] > 0.9
    lines = calibrate.tables([jobs], found).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 * 2 + 3 + 1
    page = PAGE.splitlines()
    for row in rows:
        if row.startswith("| JSON 100 | 0.034 |"):
            assert _exact(row) in [
                _exact(line) for line in page if line.startswith("| JSON 100 | 0.034 |")
            ]
        else:
            assert row in page


@pytest.mark.parametrize("name", calibrate_all.MODULES)
def test_the_tables_of_every_part_have_their_place_in_the_docs(name):
    pages = [path.read_text() for path in MEASURED.glob("*.md")]
    found = [
        text[slice(*span)]
        for text in pages
        if (span := calibrate_all.place(text, name)) is not None
    ]
    assert len(found) == 1
    assert found[0].count("\n| ") > 3
    assert callable(calibrate_all.find_printer(name))


def test_written_tables_have_the_commit_and_the_day_of_now(monkeypatch, tmp_path, capsys):
    rows = ["# T\n\nClaim: [m](../method.md).\n", HEAD, "|---|---|---|---|"]
    for names in ("rules write", "paired", "rules paired write"):
        rows.append(f'| `make calibrate ARGS="{names}"` | 1234567 | 1 core | 2026-01-02 |')
    place = "<!-- calibrate rules -->\n\n| old |\n\n<!-- end -->\n\nMore.\n"
    (tmp_path / "one.md").write_text("\n".join([*rows, "", place]))
    monkeypatch.setattr(calibrate_all, "MEASURED", tmp_path)
    monkeypatch.setattr(calibrate_all, "printed", lambda name: f"| new {name} |")
    calibrate_all.main(["rules", "write"])
    text = (tmp_path / "one.md").read_text()
    assert text.endswith("<!-- calibrate rules -->\n\n| new rules |\n\n<!-- end -->\n\nMore.\n")
    assert text.count("| 1234567 | 1 core | 2026-01-02 |") == 2
    assert "written to docs/measured/one.md" in capsys.readouterr().out
    with pytest.raises(LookupError, match="calibrate paired"):
        calibrate_all.main(["paired", "write"])


def _exact(row):
    """Return the values in brackets, which do not depend on chance."""
    return re.findall(r"\((.*?)\)", row)


PAGE_CALIBRATE_DRIFT = (MEASURED / "trend.md").read_text()


def test_the_worst_cell_keeps_its_promise_and_would_not_if_the_estimate_were_taken_for_the_variance():  # noqa: E501
    """Use 720 series of 100 prompts that are wrong with .03, and two reference runs."""
    random = numpy.random.default_rng(12)
    cell = calibrate_drift.measure(random, "all .03", 100, 2, own=False, endpoint_count=18)
    assert calibrate_drift.interval(cell.before, cell.series)[0] > 5 * calibrate_drift.NOMINAL
    assert calibrate_drift.interval(cell.after, cell.series)[0] <= calibrate_drift.NOMINAL
    assert min(cell.limits) > 10.0


def test_runs_are_drawn_from_the_law_of_their_prompts():
    random = numpy.random.default_rng(13)
    for name, difficulty in calibrate_drift.DIFFICULTIES.items():
        wrong = difficulty(random, 300)
        counts = calibrate_drift.drawn(random, wrong, (20_000,))
        variance = float((wrong * (1.0 - wrong)).sum())
        assert counts.mean() == pytest.approx(wrong.sum(), abs=4 * (variance / 20_000) ** 0.5), name
        assert counts.var() == pytest.approx(variance, rel=0.06), name


def test_the_page_of_the_method_has_rows_for_the_same_series(
    monkeypatch,
):
    for name in ("ENDPOINTS", "SERIES", "EFFECT_SERIES", "WAVE_SERIES", "FALL_SERIES"):
        monkeypatch.setattr(calibrate_drift, name, 1)
    rows = [line for line in calibrate_drift.tables().splitlines() if line.startswith("|")]
    assert len(rows) == 5 * 2 + 16 + 9 + 6 + 2 + 4
    for row in rows:
        named = 2 if row.count("|") == 4 and "deviations" in row else 3
        assert "|".join(row.split("|")[:named]) in PAGE_CALIBRATE_DRIFT


def test_the_page_has_rows_for_the_same_endpoints(monkeypatch):
    monkeypatch.setattr(calibrate_flips, "ROUNDS", 2)
    for write_table, file in (
        (calibrate_flips.tables, "compare.md"),
        (calibrate_flips.tables_batches, "check-invariants.md"),
    ):
        page = (MEASURED / file).read_text()
        for row in write_table().splitlines():
            assert "|".join(row.split("|")[:-3]) in page


def test_the_page_has_rows_for_the_same_requests(monkeypatch):
    page = (MEASURED / "recorded-requests.md").read_text()
    monkeypatch.setattr(calibrate_requests, "SIZES", (100,))
    monkeypatch.setattr(calibrate_requests, "PAIRS", 4)
    monkeypatch.setattr(calibrate_requests, "DAMAGED_PAIRS", 1)
    rows = calibrate_requests.tables().splitlines()
    assert len(rows) == 2 + 9 + 4 + 1 + 2 + 16
    for row in rows:
        assert "|".join(row.split("|")[:3]) in page


PAGE_CALIBRATE_ONSET = (MEASURED / "method-onset.md").read_text()


def test_the_page_of_the_method_has_rows_for_the_same_runs(monkeypatch):
    monkeypatch.setattr(calibrate_onset, "HEALTHY", dict.fromkeys(calibrate_onset.HEALTHY, 1))
    monkeypatch.setattr(calibrate_onset, "LOOKED_AT", dict.fromkeys(calibrate_onset.LOOKED_AT, 1))
    monkeypatch.setattr(calibrate_onset, "RUNS", 5)
    for row in calibrate_onset.tables().splitlines():
        first = "|".join(row.split("|")[: 3 if row.count("|") > 6 else 2])  # with the limit
        assert first in PAGE_CALIBRATE_ONSET


PAGE_CALIBRATE_WATCH = (MEASURED / "watch.md").read_text()


@pytest.mark.slow
def test_the_page_has_rows_for_the_same_watches(monkeypatch):
    monkeypatch.setattr(calibrate_watch, "RUNS", 2)
    monkeypatch.setattr(calibrate_watch, "LATE", (0,))
    monkeypatch.setattr(calibrate_watch, "BASELINES", 2)
    monkeypatch.setattr(calibrate_watch, "VARYING", 2)
    monkeypatch.setattr(calibrate_watch, "VARYING_ROUNDS", 20)
    for table, cells in (("falls", 4), ("floors", 4), ("dependent", 3)):
        for row in getattr(calibrate_watch, table)().splitlines()[2:]:
            assert f"\n{'|'.join(row.split('|')[:cells])}|" in PAGE_CALIBRATE_WATCH
    printed = re.search(
        r"^\| 1000 \| 4320 \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| 10 \|$",
        PAGE_CALIBRATE_WATCH,
        re.MULTILINE,
    )
    assert int(printed[4]) <= 10


def test_healthy_watches_do_not_alarm_and_a_large_fall_is_noticed():
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


def test_rounds_that_are_worse_as_a_whole_are_no_alarm_where_their_means_are_bet_on():
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


def test_the_page_has_rows_for_the_same_deployments(monkeypatch):
    page = (MEASURED / "check-workers.md").read_text()
    monkeypatch.setattr(calibrate_workers, "ROUNDS", 2)
    monkeypatch.setattr(calibrate_workers, "ANSWERS", 40)
    for row in calibrate_workers.tables().splitlines():
        assert "|".join(row.split("|")[:2]) in page


REPLICATES = 400


@cache
def _p(job):
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
def test_the_worst_cells_keep_their_level(job, level):
    assert sum(p <= level for p in _p(job)) <= acceptance_region(REPLICATES, level)[1]


def test_the_worst_cell_of_student_is_seen_to_break():
    """The cells above test nothing if the t test passes them as well."""
    random = numpy.random.default_rng(1)
    job = Job("all .01", 100, 10)
    broken = sum(
        (drop_test(draw(job, random), "paired_t").p or 0.0) <= 0.05 for _ in range(REPLICATES)
    )
    assert broken > 2 * acceptance_region(REPLICATES, 0.05)[1]


@pytest.mark.parametrize("altered", [0.0, 0.04], ids=["the same endpoint", "another build"])
def test_a_suite_of_forty_small_tasks_alarms_at_its_level(altered):
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
def test_a_true_drop_of_the_margin_is_excluded_at_the_level_of_the_bound(job):
    random = numpy.random.default_rng(7)
    margin = job.drop or 0.99 * job.everywhere
    excluded = sum(noninferiority(draw(job, random), margin, 0.05).holds for _ in range(REPLICATES))
    assert excluded <= acceptance_region(REPLICATES, 0.055)[1]
    assert excluded >= REPLICATES // 100  # a bound that never excludes anything would pass too


def test_an_interval_is_exact_and_marks_what_is_beyond():
    assert interval(0, 100) == pytest.approx((0.0, 0.0362), abs=1e-4)
    assert interval(8, 100) == pytest.approx((0.0352, 0.1516), abs=1e-4)
    assert beyond(12, 100, 0.05)
    assert not beyond(9, 100, 0.05)
    assert share(12, 100, 0.05) == "**12.00 [6.36, 20.02]**"
    assert share(12, 100) == "12.00 [6.36, 20.02]"


def test_the_prompts_that_anchors_take():
    assert calibrate_paired.anchor_sizes(0.034) == [4378, 3276, 2655, 1574, 1058]


@pytest.mark.slow
def test_a_small_calibration_prints_every_table(monkeypatch):
    monkeypatch.setattr(calibrate_paired, "REPLICATES", 20)
    monkeypatch.setattr(calibrate_paired, "SUITES", 1)
    jobs = {
        "LEVEL_JOBS": calibrate_paired.measure,
        "POWER_JOBS": calibrate_paired.measure,
        "MARGIN_JOBS": calibrate_paired.exclude,
    }
    parts = {}
    for name, simulate in jobs.items():
        few = [job for job in getattr(calibrate_paired, name) if job.n <= 200][:3]
        monkeypatch.setattr(calibrate_paired, name, few)
        parts[name.split("_")[0].lower()] = [simulate(job) for job in few]
    assert parts["level"] == [calibrate_paired.measure(job) for job in calibrate_paired.LEVEL_JOBS]
    name = next(iter(calibrate_paired.SUITE_JOBS))
    parts["suite"] = {name: calibrate_paired.suite(name, 0)}
    rows = [line for line in calibrate_paired.tables(parts).splitlines() if line.startswith("|")]
    assert len(rows) == 5 * 2 + 3 + 3 + 3 + 1 + 3
    assert {row.count("|") for row in rows} == {12, 8, 9, 5, 7}


REPLICATES_CALIBRATE_REPEATS = 150


@pytest.mark.parametrize("moved", [False, True])
def test_a_drop_is_exactly_the_margin(moved):
    random = numpy.random.default_rng(1)
    before = random.beta(0.5, 0.5, 40)
    after = lose(random, before, 0.07, moved=moved)
    assert before.mean() - after.mean() == pytest.approx(0.07)
    assert (after >= -1e-12).all()


def test_the_drawn_cells_are_those_of_the_seed_and_of_all_sizes():
    margins, builds = draw_cells()
    assert draw_cells() == (margins, builds)
    assert draw_cells(1) != (margins, builds)
    many = draw_cells(2, 200)[0]
    assert {job.n for job in many} == {10, 20, 40, 80, 200}
    assert {job.k for job in many} == {job.m for job in many} == {1, 2, 3, 5, 8, 16, 64}


@pytest.mark.parametrize("seed", [52, 2026])
def test_margins_of_drawn_cells_keep_their_level(seed, monkeypatch):
    monkeypatch.setattr(calibrate_repeats, "REPLICATES", REPLICATES_CALIBRATE_REPEATS)
    jobs = [job for job in draw_cells(seed, 8)[0] if job.k * job.m * job.n < 20_000][:4]
    for job in jobs:
        found = calibrate_repeats.exclude(job)
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
def test_the_worst_builds_keep_their_level_and_break_that_of_signs(job, monkeypatch):
    monkeypatch.setattr(calibrate_repeats, "REPLICATES", REPLICATES_CALIBRATE_REPEATS)
    found = calibrate_repeats.prove(job)
    most = acceptance_region(REPLICATES_CALIBRATE_REPEATS, 0.05)[1]
    assert found.auto[0] <= most < found.flips[0]


@pytest.mark.parametrize(
    "job", [BuildJob("all .5", "same", 100, 3, 1, 0.1), BuildJob("all .5", "same", 30, 8, 8, 0.08)]
)
def test_the_power_given_up_for_symmetric_differences_is_small(job, monkeypatch):
    """With the end of the whole range, 30 prompts with 8 answers would give up 5.4 points."""
    monkeypatch.setattr(calibrate_repeats, "REPLICATES", REPLICATES_CALIBRATE_REPEATS)
    found = calibrate_repeats.prove(job)
    assert found.flips[0] - found.auto[0] <= 0.05 * REPLICATES_CALIBRATE_REPEATS


def test_the_cells_measure_the_automatic_test():
    job = BuildJob("Beta(.2, .1)", "redrawn", 30, 3, 2)
    random = numpy.random.default_rng(4)
    for _ in range(20):
        pairs = calibrate_repeats.draw_build(job, random)
        exchange = drop_test(pairs, "exchange").p
        end = average_largest_gain(pairs, at_best=False)
        equal = equal_accuracy_test(pairs.worst.round(12), end).p_mid
        assert exchange is not None
        assert drop_test(pairs).p == pytest.approx(max(exchange, equal), abs=1e-12)


@pytest.mark.slow
def test_a_small_calibration_prints_every_table_calibrate_repeats(
    monkeypatch,
):
    for name, value in (("REPLICATES", 10), ("SUITES", 1), ("DRAWN", 1)):
        monkeypatch.setattr(calibrate_repeats, name, value)
    margins = [job for job in calibrate_repeats.MARGIN_JOBS if job.k < 64][:2]
    builds, powers = (
        calibrate_repeats.BUILD_JOBS[:2],
        calibrate_repeats.POWER_JOBS[-1:],
    )
    monkeypatch.setattr(calibrate_repeats, "POWER_JOBS", powers)
    name = next(iter(calibrate_repeats.SUITE_JOBS))
    text = calibrate_repeats.write_tables(
        margins,
        [calibrate_repeats.exclude(job) for job in margins],
        builds,
        [calibrate_repeats.prove(job) for job in [*builds, *powers]],
        {name: calibrate_repeats.run_suites(name)},
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4 * 2 + 2 + 2 + 1 + 1
    assert {row.count("|") for row in rows} == {8, 9, 10, 4}


def test_a_margin_that_is_no_drop_of_the_shape_is_left_out(monkeypatch):
    monkeypatch.setattr(calibrate_repeats, "REPLICATES", 3)
    assert calibrate_repeats.exclude(MarginJob("all .12 (floor)", 10, 1, 1, 0.2)).of == 0
