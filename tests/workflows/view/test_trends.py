"""The trends of a folder: alarms of the drift chart, the band, and the map of verdicts."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serve_eval.schema import Report, VerdictOutcome
from serve_eval.series.history import sort_runs
from serve_eval.series.read_runs import FinishedRun, read_runs
from serve_eval.workflows.view import trends
from tests.cli.command import serve_eval

T0 = datetime(2026, 10, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[FinishedRun]:
    """Twenty nights that decline from the eleventh on, from the report of one run."""
    folder = tmp_path_factory.mktemp("trends")
    flags = ["--launcher", "simulated", "-m", "org/m", "--tasks", "word_problems", "--limit", "20"]
    serve_eval("run", *flags, "--no-reference", "-o", folder / "run")
    [made], _ = read_runs(folder)
    return [
        FinishedRun(
            folder=Path(f"night_{i}"),
            report=_change(made.report, 80.0 - 4.0 * max(0, i - 10) + math.sin(i), i),
            began=T0 + timedelta(days=i),
            sessions=str(i).encode(),
        )
        for i in range(20)
    ]


def _change(report: Report, value: float, i: int) -> Report:
    task = report.tasks[0]
    outcome = VerdictOutcome.FAIL if i in (3, 19) else VerdictOutcome.PASS
    verdict = replace(
        task.verdict,
        rule="classic",
        outcome=outcome,
        evaluated=value,
        reference=80.0,
        threshold=77.5,
    )
    changed = replace(task, result=replace(task.result, value=value, planned=1319), verdict=verdict)
    return replace(report, tasks=(changed,))


def test_a_decline_alarms_and_the_picture_has_the_reference(runs: list[FinishedRun]) -> None:
    [drawn] = trends.draw_series(sort_runs(runs).series, runs)
    assert drawn.alarm
    assert any(line.startswith("ALARM") for line in drawn.warnings)
    assert drawn.picture is not None
    assert drawn.picture.ruler is not None
    for text in ("20 runs", "Reference 80, threshold 77.5", "the first has 80", "alarm"):
        assert text in drawn.picture.description
    assert drawn.picture.ruler.rows[-1].text.endswith("FAIL ALARM")
    assert "ALARM" not in drawn.picture.ruler.rows[0].text


def test_only_the_first_series_are_drawn(
    runs: list[FinishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [
        replace(run, report=replace(run.report, plan=replace(run.report.plan, model="org/few")))
        for run in runs[:3]
    ]
    monkeypatch.setattr(trends, "MOST_DRAWN", 1)
    both = [*runs, *other]
    most, few = trends.draw_series(sort_runs(both).series, both)
    assert "org/m" in most.name
    assert most.picture is not None
    assert few.picture is None


def test_the_map_has_a_row_for_each_series_from_old_to_new(runs: list[FinishedRun]) -> None:
    [row] = trends.list_heat_rows(reversed(runs))
    assert row.name.startswith("word_problems of org/m")
    assert [i for i, verdict in enumerate(row.verdicts) if verdict == "FAIL"] == [3, 19]
    picture = trends.draw_verdicts(runs)
    assert picture is not None
    assert "13 passed, 5 passed after failed, 2 failed; the last failed" in picture.description
