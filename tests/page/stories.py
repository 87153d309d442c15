"""Contents of the pages of suite, load, verify, smoke, watch and drift, with hostile texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from serve_eval.report.document import make_page
from serve_eval.report.page.content import PageContent
from serve_eval.schema import (
    LoadPoint,
    LoadSurface,
    LoadTask,
    Metric,
    SuiteReport,
    SuiteRow,
    SuiteRunReport,
    VerdictOutcome,
    Waiver,
    WaiverState,
    WaiverUse,
)
from serve_eval.series.chart import chart
from serve_eval.series.history import Night, Series
from serve_eval.series.page import make_drift_page
from serve_eval.workflows.load.page import make_load_page
from serve_eval.workflows.suite.page import make_suite_page
from tests.report.document.made import smoke, tools, verify, watch

HOSTILE = "</title><script>window.hit = 1</script><img src=x onerror=hit()>\x1b[31m\u202e\ud800"
T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)


def make_suite(folder: Path) -> PageContent:
    """Return a suite with a FAIL, a waived FAIL, a run without a report and one with a page."""
    (folder / "runs/a-7b").mkdir(parents=True)
    (folder / "runs/a-7b/report.html").touch()
    waiver = Waiver(match={"task": "mmlu"}, reason=HOSTILE, until=date(2027, 1, 31))
    rows = [
        ("a-7b", "gsm8k", VerdictOutcome.FAIL, 60.5, None, {"size": "7B", "cache": "fp8"}),
        ("a-7b", "mmlu", VerdictOutcome.FAIL, 50.25, waiver, {"size": "7B", "cache": "fp8"}),
        ("b-70b", "gsm8k", VerdictOutcome.PASS, 80.0, None, {"size": "70B", "cache": HOSTILE}),
    ]
    return make_suite_page(
        SuiteReport(
            schema_version=1,
            name=HOSTILE,
            verdict="FAIL",
            exit_code=1,
            alpha=0.05,
            runs=tuple(
                SuiteRunReport(name=name, attributes={}, folder=name, kept=False, error=None)
                for name in ("a-7b", "b-70b", "<b>run")
            ),
            rows=tuple(
                SuiteRow(
                    run=run,
                    task=task,
                    model=run,
                    attributes=attributes,
                    rule="classic",
                    own=outcome,
                    outcome=outcome,
                    evaluated=value,
                    reference=70.0,
                    threshold=68.0,
                    waiver=waived,
                    reasons=(HOSTILE,),
                )
                for run, task, outcome, value, waived, attributes in rows
            ),
            waivers=(WaiverUse(waiver=waiver, state=WaiverState.APPLIED, failing=("a-7b/mmlu",)),),
            started_at="2026-10-01T12:00:00+00:00",
            wall_s=3.0,
        ),
        folder,
    )


def make_load() -> PageContent:
    """Return a check over loads in which load 64 is broken."""
    points = (
        LoadPoint(
            load=1, outcome="lowest", scored=200, failed=0, value=81.0, interval=(75.0, 86.0)
        ),
        LoadPoint(
            load=64,
            outcome="worse",
            scored=198,
            failed=2,
            value=60.5,
            interval=(53.0, 67.0),
            lost=41,
            won=2,
            p=1e-9,
            p_holm=2e-9,
            ttft_s={"p50": 0.5, "p99": 0.9},
            right_per_s=20.0,
        ),
    )
    task = LoadTask(
        task=HOSTILE,
        points=points,
        q=None,
        df=0,
        q_p=None,
        time=None,
        broken=(64,),
        failing=(),
        words="broken at load 64",
    )
    return make_load_page(
        LoadSurface(
            schema_version=1,
            model=HOSTILE,
            base_url="http://127.0.0.1:8000/v1",
            alpha=0.01,
            order=(64, 1),
            seed=1,
            tasks=(task,),
            bracket=None,
            requests=400,
            exit_code=1,
            started_at="2026-10-01T12:00:00+00:00",
            wall_s=3.0,
            warnings=(HOSTILE,),
        )
    )


def make_drift(folder: Path) -> PageContent:
    """Return the chart of a series that declines."""
    nights = tuple(
        Night(
            run=folder / f"run {i}",
            started_at=T0 + timedelta(days=i),
            value=80.0 - (3.0 * max(0, i - 10)) - 0.2 * math.sin(i),
            missing=0,
            paired=None,
            reference=None,
            address="http://127.0.0.1:8000/v1",
            version=None,
        )
        for i in range(20)
    )
    series = Series(
        task="gsm8k",
        model=HOSTILE,
        spec="default",
        simulated=False,
        fingerprint={},
        metric=Metric(),
        n=1319,
        nights=nights,
    )
    return make_drift_page([chart(series)], [HOSTILE], folder)


def make_all(folder: Path) -> Mapping[str, PageContent]:
    """Return the content of each page. `folder` is an empty one."""
    return {
        "suite": make_suite(folder),
        "load": make_load(),
        "verify": make_page(verify.make_documents(HOSTILE)["two servers"]),
        "smoke": make_page(smoke.make_documents(HOSTILE)["FAIL"]),
        "watch": make_page(watch.make_documents(HOSTILE)["ALARM"]),
        "tools": make_page(tools.make_documents(HOSTILE)["FAIL"]),
        "drift": make_drift(folder),
    }


STORIES = ("suite", "load", "verify", "smoke", "watch", "drift", "tools")
