"""Documents of a suite: with a FAIL and a waived one, green, of many runs, of a rehearsal."""

import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

from serve_eval.schema import (
    SuiteReport,
    SuiteRow,
    SuiteRunReport,
    VerdictOutcome,
    Waiver,
    WaiverState,
    WaiverUse,
)
from serve_eval.workflows.suite.document import make_document


def make_documents(text="some text", folder=None):
    """Return a document for each kind, with `text` where a server or a user wrote it."""
    folder = folder or Path(tempfile.mkdtemp())
    red = _make_suite(folder, text)
    passed = VerdictOutcome.PASS
    green = replace(
        red,
        verdict="PASS",
        exit_code=0,
        waivers=(),
        rows=tuple(
            replace(row, outcome=passed, own=passed, waiver=None, reasons=()) for row in red.rows
        ),
    )
    many = [
        replace(row, run=f"run-{i}-of-a-matrix-with-a-long-name-{i % 7}", model=f"m{i}")
        for i, row in enumerate(list(red.rows) * 20)
    ]
    runs = tuple(replace(red.runs[0], name=row.run) for row in many)
    suites = {
        "FAIL": red,
        "PASS": green,
        "many": replace(red, rows=tuple(many), runs=runs, waivers=()),
        "rehearsal": replace(green, verdict="INCONCLUSIVE", exit_code=3, rehearsal=True),
    }
    return {name: make_document(one, folder) for name, one in suites.items()}


def _make_suite(folder, text):
    """Return a suite with a FAIL, a waived FAIL, a run without a report and one with a page."""
    (folder / "runs/a-7b").mkdir(parents=True, exist_ok=True)
    (folder / "runs/a-7b/report.html").touch()
    waiver = Waiver(match={"task": "mmlu"}, reason=text, until=date(2027, 1, 31))
    rows = [
        ("a-7b", "gsm8k", VerdictOutcome.FAIL, 60.5, None, {"size": "7B", "cache": "fp8"}),
        ("a-7b", "mmlu", VerdictOutcome.FAIL, 50.25, waiver, {"size": "7B", "cache": "fp8"}),
        ("b-70b", "gsm8k", VerdictOutcome.PASS, 80.0, None, {"size": "70B", "cache": text}),
    ]
    return SuiteReport(
        schema_version=1,
        name=text,
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
                reasons=(text,),
            )
            for run, task, outcome, value, waived, attributes in rows
        ),
        waivers=(WaiverUse(waiver=waiver, state=WaiverState.APPLIED, failing=("a-7b/mmlu",)),),
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=3.0,
    )
