"""The trends of a folder: alarms of the drift chart, the band, and which series are drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serve_eval.report.page.content import PictureSection
from serve_eval.schema import Report, VerdictOutcome
from serve_eval.series.chart import draw_values, find_alarm, try_chart
from serve_eval.series.history import sort_runs
from serve_eval.series.read_runs import FinishedRun, read_runs
from serve_eval.workflows.view import document as view
from serve_eval.workflows.view.document import make_document
from tests.cli.command import serve_eval
from tests.report.document.made.view import make_found

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
            folder=Path("outputs") / f"night_{i}",
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
    [series] = sort_runs(runs).series
    charted, warnings = try_chart(series)
    assert charted is not None
    assert "The decline probably began on 2026-10-11" in find_alarm(charted)
    assert not any("decline probably began" in line for line in warnings)
    picture = draw_values(series, charted, series.name)
    assert picture is not None
    assert picture.ruler is not None
    for text in ("20 runs", "Reference 80, threshold 77.5", "the first has 80", "alarm"):
        assert text in picture.description
    assert picture.ruler.rows[-1].text.endswith("FAIL ALARM")
    assert "ALARM" not in picture.ruler.rows[0].text
    assert picture.ruler.rows[-1].interval == runs[-1].report.tasks[0].result.interval


def test_a_decline_without_a_failure_is_an_alarm_since_the_night_on_which_it_began(
    runs: list[FinishedRun],
) -> None:
    document = make_document(make_found(runs[:19]))  # without the last failure
    assert document.verdict == "ALARM"
    [one] = document.conclusions
    assert "The decline probably began on 2026-10-11" in one.cause
    assert document.overview is not None
    assert document.overview.rows[0][-1].text == "10-11"
    assert document.commands == ["serve-eval runs trend outputs --task word_problems --model org/m"]
    assert make_document(make_found(runs)).verdict == "FAIL"


def test_only_the_first_series_are_drawn(
    runs: list[FinishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [
        replace(run, report=replace(run.report, plan=replace(run.report.plan, model="org/few")))
        for run in runs[:3]
    ]
    monkeypatch.setattr(view, "MOST_DRAWN", 1)
    sections = make_document(make_found([*other, *runs])).make_page_blocks()
    [drawn] = [one for one in sections if isinstance(one, PictureSection)]
    assert (drawn.title, drawn.closed) == ("Trends of 1 series", True)
    assert "org/m" in drawn.pictures[0].title
