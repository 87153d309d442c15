"""Reports as runs make them, for the tests of the summary."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from serve_eval.report.document import print_document
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import (
    EarlyStop,
    Endpoint,
    PairedComparison,
    Plan,
    Report,
    Spec,
    Verdict,
    VerdictOutcome,
)
from tests.made_results import make_result, make_task_report

RESULT = make_result(
    500,
    49.2,
    task="word_problems",
    truncated=1,
    outcomes={"correct": 246, "wrong": 251, "unparsed": 3},
    breakdown={"steps": {"1": {"value": 75.2, "scored": 117}, "2": {"value": 26.9, "scored": 383}}},
    interval=(44.8, 53.6),
)
PAIRED = PairedComparison(
    reference_runs=1,
    pairs=500,
    missing=0,
    method="mcnemar_midp",
    difference=-34.6,
    se=2.4,
    df=None,
    down=191,
    up=18,
    flip_rate=0.418,
    p=3e-38,
    p_exact=None,
    alpha=0.05,
    margin=5.2,
    lower=-38.6,
    upper=-30.6,
    noninferior=False,
    equivalent=False,
    finding="FAIL",
    interval=(-39.4, -29.8),
)
VERDICT = Verdict(
    task="word_problems",
    outcome=VerdictOutcome.FAIL,
    rule="classic",
    evaluated=49.2,
    bounds=(49.2, 49.2),
    reference=83.8,
    threshold=78.6,
    theta=7.9,
    alpha=0.05,
    beta=0.2,
    sigma=50.0,
    num_samples=500,
    paired=PAIRED,
)
EARLY = EarlyStop(
    eps=0.01,
    order_seed=1,
    paired=True,
    planned=1319,
    looked_at=212,
    missing=0,
    stopped=True,
    decision="PASS",
    estimate=84.1,
    saved=1107,
    log_wealth_pass=5.0,
    log_wealth_fail=0.0,
    rule="paired",
    alpha=0.01,
    margin=5.2,
)


def task(
    result=RESULT,
    verdict=VERDICT,
    *,
    example=None,
    before=None,
    reference=None,
):
    """Return the report of a task."""
    return make_task_report(
        result,
        verdict,
        reference=reference,
        example=example,
        reference_breakdown=before or {},
    )


def named(name, one):
    """Return a task's report under another name."""
    result, verdict = replace(one.result, task=name), replace(one.verdict, task=name)
    return replace(one, result=result, verdict=verdict)


def show(
    *tasks,
    width=80,
    terminal=True,
    verbose=False,
    places=(),
):
    """Return the summary of a run of these tasks as a terminal shows it, without colours."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, no_color=True, highlight=False, emoji=False
    )
    console._color_system = None  # attributes such as reverse are escapes too
    document = make_run_document(make_report(*tasks), Path("out"), {}, places)
    print_document(document, console, verbose=verbose)
    return out.getvalue()


def make_report(*tasks):
    """Return the report of a run of these tasks."""
    return Report(
        schema_version=2,
        plan=Plan(
            model="toy", launcher=Spec(name="external"), tasks=tuple(one.spec for one in tasks)
        ),
        endpoint=Endpoint(base_url="http://host:8000/v1"),
        environment={},
        tasks=tasks,
        loads=(),
        exit_code=1,
        started_at="2026-11-27T00:00:00Z",
        wall_s=1.0,
    )
