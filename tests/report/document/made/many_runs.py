"""Documents of many runs: listed, drawn over time, as tables, searched, and judged together."""

import math
import tempfile
import zlib
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from serve_eval.schema import (
    Bisection,
    BisectionChange,
    BisectionResult,
    BisectionStep,
    BisectionSuspect,
    Metric,
    Plan,
    Spec,
    SuiteReport,
    SuiteRow,
    SuiteRunReport,
    VerdictOutcome,
    Waiver,
    WaiverState,
    WaiverUse,
    WrongExample,
)
from serve_eval.series.chart import chart, try_chart
from serve_eval.series.history import Night, Series, sort_runs
from serve_eval.series.read_runs import FinishedRun
from serve_eval.stats.noisy_search import space_of_options
from serve_eval.storage.folder_results import EndedEarly, FolderResult
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.document import make_document as make_bisect_document
from serve_eval.workflows.collect.document import CollectedRow
from serve_eval.workflows.collect.document import make_document as make_collect_document
from serve_eval.workflows.drift import make_document as make_drift_document
from serve_eval.workflows.export import make_document as make_export_document
from serve_eval.workflows.suite.document import make_document as make_suite_document
from serve_eval.workflows.view.document import make_document as make_view_document
from serve_eval.workflows.view.overview import FoundFolder, Trend, list_ends
from tests.report.summary.made import RESULT, VERDICT, make_report, task

T0 = datetime(2026, 10, 1, 2, tzinfo=UTC)
FOLDER = Path("outputs")
PASS, FAIL = VerdictOutcome.PASS, VerdictOutcome.FAIL


def make_view_documents(text="some text"):
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
    return {name: make_view_document(one) for name, one in found.items()}


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


FIRST_NIGHT = datetime(2026, 10, 1, 12, tzinfo=UTC)


def make_drift_documents(text="some text"):
    """Return a document for each outcome, with `text` where a server or a user wrote it."""
    falling, sound = make_drift_chart(model=text, fall=3.0), make_drift_chart(model="org/sound")
    made = {
        "ALARM": [falling],
        "NO ALARM": [sound],
        "one run": [make_drift_chart(model=text, runs=1)],
        "several": [sound, falling, *(make_drift_chart(model=f"{text} {i}") for i in range(20))],
    }
    return {name: make_drift_document(charts, [text], FOLDER) for name, charts in made.items()}


def make_drift_chart(*, model, fall=0.0, runs=20):
    """Return the chart of a series that loses `fall` points a night from the eleventh on."""
    nights = tuple(
        Night(
            run=FOLDER / f"run {i}",
            started_at=FIRST_NIGHT + timedelta(days=i),
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


def make_collect_documents(text="some text"):
    """Return a document for each outcome, with `text` where a run or a log has it."""
    rows = [
        CollectedRow(source="outputs/a", kind="run", task=text, verdict="PASS", value=80.0),
        CollectedRow(
            source="outputs/b", kind="run", task=text, verdict="PASS", suite_verdict="FAIL",
            reason=text, value=40.0,
        ),
        CollectedRow(source="t.log", kind="trtllm-test", test=text, verdict="FAIL", value=1.0),
        CollectedRow(source="t.log", kind="trtllm-eval", metric=text, value=1.0),
    ]  # fmt: skip
    places, table = [Path("outputs"), Path("t.log")], Path("results.csv")
    return {
        "WRITTEN": make_collect_document(rows, [f"warning: {text}", "b", "c"], places, table),
        "printed": make_collect_document(rows[2:], [], places, None),
        "NOTHING FOUND": make_collect_document([], [text], places, table),
    }


RUNS = [Path("outputs/run")]


def make_export_documents(text="some text"):
    """Return a document for each form of result, with `text` where a name comes from others."""
    safe = text.replace("/", "")
    files = [Path("outputs/run/lm-eval") / f"{safe}_{i}.jsonl" for i in range(30)]
    rows = {file: 100 * i for i, file in enumerate(files[1:])}
    table = Path("table.csv")
    return {
        "files": make_export_document(
            "lm-eval", files, runs=RUNS, rows=rows, left_out=[text, "b", "c"]
        ),
        "table": make_export_document("csv", [table], runs=RUNS * 9, rows={table: 1}, notes=[text]),
        "printed": make_export_document("csv", [], runs=RUNS, rows={Path("csv"): 3}),
        "nothing": make_export_document("biochatter", [table], runs=RUNS, rows={}),
    }


WORSE, SAME = BisectionResult.WORSE, BisectionResult.SAME


def make_bisect_documents(text="some text"):
    """Return a document for each outcome, with `text` where the user or a server wrote it."""
    changes = tuple(
        BisectionChange(name=name, options=(name,), good=text, bad="true")
        for name in ("damage", "strict_fields", "limits.concurrency")
    )
    plan = Plan(model=text, launcher=Spec(name="trtllm"), tasks=(Spec(name="word_problems"),))
    found = Configurations(space_of_options(len(changes), seed=0), changes, lambda _: plan)
    leading = {"leading": "damage", "difference": -33.4}
    steps = (
        _make_step(0, 0, BisectionResult.REFERENCE, posterior=0.2),
        _make_step(1, 7, WORSE, posterior=0.15, **leading),
        _make_step(2, 3, WORSE, posterior=0.307, **leading),
        _make_step(3, 1, WORSE, posterior=0.547, **leading),
        _make_step(4, 6, SAME, posterior=0.985, leading="damage", difference=0.4),
    )
    state = Bisection(
        schema_version=1,
        ordered=False,
        changes=changes,
        tasks=("word_problems",),
        samples=300,
        margin=16.7,
        alpha=0.005,
        confidence=0.95,
        steps=steps,
        suspects=(_suspect("together", "damage", posterior=0.985),),
        ending="found",
        exit_code=1,
        starts=4,
        requests=1071,
        gpu_hours=0.25,
        started_at="2026-10-01T12:00:00+00:00",
        wall_s=60.0,
    )
    undecided = replace(state, exit_code=3, suspects=(*state.suspects, _suspect("none")))
    lost = replace(steps[4], result=BisectionResult.NO_START, reason=text, difference=None)
    states = {
        "FAIL": state,
        "FAIL together": replace(
            state, suspects=(_suspect("together", "damage", "strict_fields", posterior=0.9999),)
        ),
        "FAIL either": replace(
            state, suspects=(_suspect("either", "damage", "strict_fields", posterior=0.96),)
        ),
        "PASS": replace(
            state, steps=(steps[0], replace(steps[1], result=SAME)), suspects=(_suspect("none"),),
            exit_code=0,
        ),
        "INCONCLUSIVE by the budget": replace(
            undecided, ending="budget", steps=(*steps[:4], lost), warnings=(text,)
        ),
        "INCONCLUSIVE unconfirmed": replace(undecided, ending="unconfirmed", margin=None),
        "INCONCLUSIVE weak": replace(undecided, ending="weak"),
        "INCONCLUSIVE exhausted": replace(undecided, ending="exhausted"),
        "INCONCLUSIVE outside": replace(
            undecided, suspects=(_suspect("outside"),), ending="found", gpu_hours=None
        ),
    }  # fmt: skip
    return {
        name: make_bisect_document(one, found, Path("outputs/bisect"))
        for name, one in states.items()
    }


def _make_step(number, configuration, result, **more):
    return BisectionStep(
        number=number,
        configuration=configuration,
        changes=(),
        folder=f"runs/{number:02d}",
        result=result,
        asked=300,
        starts=1,
        **more,
    )


def _suspect(kind, *members, posterior=0.96):
    return BisectionSuspect(
        kind=kind, members=members, posterior=posterior, text=" or ".join(members) or "no option"
    )


def make_suite_documents(text="some text", folder=None):
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
    return {name: make_suite_document(one, folder) for name, one in suites.items()}


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
