"""Contents of the pages of suite, verify, smoke, watch and drift, with hostile texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.report.document import make_page
from serve_eval.report.page.content import PageContent
from serve_eval.schema import (
    Metric,
    ProbeDistance,
    Verification,
    VerificationOutcome,
    VerifiedSide,
)
from serve_eval.series.chart import chart
from serve_eval.series.history import Night, Series
from serve_eval.series.page import make_drift_page
from serve_eval.workflows.smoke.page import make_smoke_page
from serve_eval.workflows.smoke.smoke import Smoke
from serve_eval.workflows.verify.page import make_verify_page
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.page import make_watch_page
from serve_eval.workflows.watch.record import LearntLevel, Seen, State, WatchAlarm
from tests.report.document.made import load, suite, tools

HOSTILE = "</title><script>window.hit = 1</script><img src=x onerror=hit()>\x1b[31m\u202e\ud800"
T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)


def make_verify() -> PageContent:
    """Return a verification of two servers, one of them another model."""
    sides = (
        _verified(HOSTILE, VerificationOutcome.IDENTICAL, 0.001),
        _verified("worker-2", VerificationOutcome.ANOTHER, 2.5),
    )
    found = Verification(
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=2.0,
        reference="old:8000",
        noise=0.002,
        step=0.0,
        floor=0.08,
        sibling_median=None,
        reference_requests=10,
        prompt_lengths=(100, 900),
        salted=True,
        warnings=(HOSTILE,),
        sides=sides,
        exit_code=1,
    )
    return make_verify_page(found, {})


def _verified(name: str, outcome: VerificationOutcome, nats: float) -> VerifiedSide:
    distances = tuple(ProbeDistance(probe=str(i), nats=nats * (i + 1) / 40) for i in range(40))
    return VerifiedSide(
        name=name,
        url="http://127.0.0.1:8000/v1",
        outcome=outcome,
        why=HOSTILE,
        asked=40,
        unanswered=0,
        beyond_noise=3,
        beyond_floor=2,
        far=0,
        median=nats / 2,
        effect=None,
        evidence=1e6,
        excluded_share=0.1,
        tokens=8000,
        requests=40,
        cached_tokens=None,
        salted=True,
        fingerprint=None,
        distances=distances,
    )


def make_smoke() -> PageContent:
    """Return a smoke test with each outcome."""
    rows = [
        CheckRow(name="chat", outcome=CheckOutcome.PASS, told="HTTP 200", time_s=0.1),
        CheckRow(
            name="json", outcome=CheckOutcome.FAIL, told=HOSTILE, time_s=0.2, curl=f"curl {HOSTILE}"
        ),
        CheckRow(name="tools", outcome=CheckOutcome.UNSUPPORTED, told="refused", time_s=0.3),
    ]
    done = Smoke(rows=rows, exit_code=1, stopped="", requests=9, generated=90, seconds=1.5)
    return make_smoke_page(done, "http://127.0.0.1:8000/v1")


def make_watch() -> PageContent:
    """Return a watch with an active alarm after its baseline."""
    alarm = WatchAlarm(
        kind="accuracy", round=3, at="2026-10-01T15:00:00+00:00", told=f"accuracy fell {HOSTILE}"
    )
    state = State(
        bound={},
        seed=1,
        model=HOSTILE,
        chat=True,
        answers=[],
        usable=[],
        misses=[],
        prompt_tokens=[],
        rounds=3,
        accuracy=LearntLevel(mean=0.8, floor=0.78),
        alarms=[alarm],
    )
    rounds = [
        Seen(
            round=i + 1,
            started_at=(T0 + timedelta(hours=i)).isoformat(),
            seconds=1.0,
            asked=[0, 1, 2, 3],
            values=[1.0, 1.0, float(i < 2), None],
            usable="111",
            prompt_tokens=[9] * 4,
            failures={"timeout": 1},
            latencies_s=[0.1, 0.2, 0.4],
            tokens=100,
        )
        for i in range(3)
    ]
    rules = WatchRules(passes=2, tolerance=0.02, max_error_rate=0.1)
    return make_watch_page(state, rounds, rules, "http://127.0.0.1:8000/v1")


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
        "verify": make_verify(),
        "smoke": make_smoke(),
        "watch": make_watch(),
        "tools": make_page(tools.make_documents(HOSTILE)["FAIL"]),
        "drift": make_drift(folder),
    }


STORIES = ("suite", "load", "verify", "smoke", "watch", "drift", "tools")
