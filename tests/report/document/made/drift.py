"""Documents of drift charts: a series that declines, sound ones, and one with a single run."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

from serve_eval.schema import Metric
from serve_eval.series.chart import chart
from serve_eval.series.history import Night, Series
from serve_eval.workflows.drift import make_document

T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)
FOLDER = Path("outputs")


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a user wrote it."""
    falling, sound = make_chart(model=text, fall=3.0), make_chart(model="org/sound")
    made = {
        "ALARM": [falling],
        "NO ALARM": [sound],
        "one run": [make_chart(model=text, runs=1)],
        "several": [sound, falling, *(make_chart(model=f"{text} {i}") for i in range(20))],
    }
    return {name: make_document(charts, [text], FOLDER) for name, charts in made.items()}


def make_chart(*, model, fall=0.0, runs=20):
    """Return the chart of a series that loses `fall` points a night from the eleventh on."""
    nights = tuple(
        Night(
            run=FOLDER / f"run {i}",
            started_at=T0 + timedelta(days=i),
            value=80.0 - fall * max(0, i - 10) - 0.2 * math.sin(i),
            missing=0,
            paired=None,
            reference=None,
            address="http://127.0.0.1:8000/v1",
            version=None,
        )
        for i in range(runs)
    )
    return chart(
        Series(
            task="gsm8k",
            model=model,
            spec="default",
            simulated=False,
            fingerprint={},
            metric=Metric(),
            n=1319,
            nights=nights,
        )
    )
