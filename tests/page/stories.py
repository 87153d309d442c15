"""Contents of the pages of several stories, with hostile texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from serve_eval.report.document import make_page
from serve_eval.report.page.content import PageContent
from serve_eval.schema import Metric
from serve_eval.series.chart import chart
from serve_eval.series.history import Night, Series
from serve_eval.series.page import make_drift_page
from tests.report.document.made import load, smoke, suite, tools, verify, view, watch

HOSTILE = "</title><script>window.hit = 1</script><img src=x onerror=hit()>\x1b[31m\u202e\ud800"
T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)


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
        "suite": make_page(suite.make_documents(HOSTILE, folder)["FAIL"]),
        "load": make_page(load.make_documents(HOSTILE)["FAIL"]),
        "verify": make_page(verify.make_documents(HOSTILE)["two servers"]),
        "smoke": make_page(smoke.make_documents(HOSTILE)["FAIL"]),
        "watch": make_page(watch.make_documents(HOSTILE)["ALARM"]),
        "drift": make_drift(folder),
        "view": make_page(view.make_documents(HOSTILE)["FAIL"]),
        "tools": make_page(tools.make_documents(HOSTILE)["FAIL"]),
    }


STORIES = ("suite", "load", "verify", "smoke", "watch", "drift", "view", "tools")
