"""Documents of a folder of runs: series that fail and decline, commands without a result."""

import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from serve_eval.schema import VerdictOutcome, WrongExample
from serve_eval.series.chart import try_chart
from serve_eval.series.history import sort_runs
from serve_eval.series.read_runs import FinishedRun
from serve_eval.storage.folder_results import EndedEarly, FolderResult
from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.overview import FoundFolder, Trend, list_ends
from tests.report.summary.made import RESULT, VERDICT, make_report, task

T0 = datetime(2026, 10, 1, 2, tzinfo=UTC)
FOLDER = Path("outputs")
PASS, FAIL = VerdictOutcome.PASS, VerdictOutcome.FAIL


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a user wrote it."""
    failing = make_runs([PASS] * 5 + [FAIL] * 3, model=text)
    sound = make_runs([PASS] * 8, model=f"{text} 2")
    falling = make_runs([PASS] * 20, model=text, fall=0.6)
    none = make_runs([VerdictOutcome.NO_REFERENCE] * 2, model=text)
    several = [run for i in range(40) for run in make_runs([PASS, FAIL], model=f"{text} {i}")]
    died = EndedEarly(
        folder=FOLDER / text.replace("/", "_").replace("\n", " "),
        command="run",
        about=text,
        outcome="KILLED",
        cause=text,
        ended=T0 + timedelta(days=7),
    )
    result = FolderResult(
        folder=FOLDER / "cmp", command="compare", subject=text, began=T0, outcome=FAIL
    )
    found = {
        "FAIL": make_found([*failing, *sound], results=[result], early=[died], notes=[text]),
        "PASS": make_found(sound),
        "ALARM": make_found(falling),
        "NO REFERENCE": make_found(none),
        "KILLED": make_found([], early=[died, replace(died, outcome="ERROR", ended=T0)]),
        "many": make_found(several),
    }
    return {name: make_document(one) for name, one in found.items()}


def make_found(
    runs,
    *,
    results=(),
    early=(),
    notes=(),
):
    """Return a folder that holds these, with the charts of the runs."""
    history = sort_runs(runs, notes)
    ordered = sorted(history.series, key=lambda one: -len(one.nights))
    charts = [(one, *try_chart(one)) for one in ordered]
    return FoundFolder(
        folder=FOLDER,
        runs=runs,
        ends=list_ends(runs, results, early),
        results=len(results),
        early=len(early),
        trends=[Trend(series=one, charted=of, warnings=lines) for one, of, lines in charts],
        notes=history.notes,
    )


def make_runs(outcomes, *, model, fall=0.0):
    """Return a run each night. From the eleventh on each has `fall` points less than before."""
    runs = []
    for i, outcome in enumerate(outcomes):
        judged = outcome in (PASS, FAIL)
        value = 83.0 if outcome is not FAIL else 49.2
        value -= fall * max(0, i - 10) + 0.1 * (i % 2)
        one = task(
            replace(
                RESULT, value=value, interval=(value - 3.0, value + 3.0), bounds=(value, value)
            ),
            replace(
                VERDICT,
                outcome=outcome,
                evaluated=value,
                bounds=(value, value),
                paired=None,
                reference=83.8 if judged else None,
                threshold=78.6 if judged else None,
            ),
            example=WrongExample(id=model, answer=model, target=model),
        )
        report = make_report(one)
        runs.append(
            FinishedRun(
                folder=FOLDER / f"{zlib.crc32(repr(model).encode())}_{i}",
                report=replace(report, plan=replace(report.plan, model=model)),
                began=T0 + timedelta(days=i),
                sessions=f"{model} {i}".encode(errors="replace"),
            )
        )
    return runs
