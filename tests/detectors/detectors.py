"""Collect the findings of each detector in a trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from serve_eval.evaluation.results.degradation import describe
from serve_eval.evidence.attribution.latency import describe_slow as told_of_slow
from serve_eval.schema import Attribution, ComparedTask, Outcome, TaskReport
from serve_eval.storage.file_names import REPORT_FILE
from serve_eval.storage.reports.report_file import read_report
from serve_eval.verdicts.exit_code import FAIL
from serve_eval.workflows.diagnose.story import diagnose
from tests.detectors.trial import Trial

COMPARE, ALARM, ATTRIBUTION, ASKED = (
    "compare",
    "drift alarm",
    "attribution of the run",
    "serve-eval check workers",
)
DIAGNOSE, COUNTS = "diagnose", "counts and exit code"
NAMES = (COMPARE, ALARM, ATTRIBUTION, ASKED, DIAGNOSE, COUNTS)
NAMED = ("more_flips", "slower", "uneven", "more_failures")
"""Warnings of compare."""


class Finding(NamedTuple):
    """The detector, its short name of the finding, and the sentence that a user reads."""

    detector: str
    name: str
    said: str


def findings(trial: Trial) -> list[Finding]:
    """Return all findings about the disaggregated side."""
    found = []
    if trial.ended is not None:
        found.append(
            Finding(COUNTS, f"the run stops, exit code {trial.ended.exit_code}", str(trial.ended))
        )
    if trial.comparison is not None:
        for task in trial.comparison.tasks:
            found += _compared(task)
        if trial.comparison.exit_code == FAIL:
            assert any(one.name == "FAIL" for one in found)
    for run in diagnose(trial.folder).runs:
        found += [Finding(DIAGNOSE, one.rule, one.told) for one in run.findings]
    if trial.asked is not None:
        for told_apart in filter(None, (trial.asked.alone, trial.asked.in_pairs)):
            found += _attributed(told_apart, ASKED, trial)
    if (trial.folder / REPORT_FILE).exists():
        report = read_report(trial.folder)
        found += [
            Finding(COUNTS, "hidden retries", line)
            for line in report.warnings
            if "the orchestrator retried requests" in line
        ]
        for one in report.tasks:
            found += _of_run(one, trial)
    return found


def _compared(task: ComparedTask) -> Iterator[Finding]:
    verdict = task.verdict
    if verdict.outcome == "FAIL":
        a, b = task.a.value, task.b.value
        yield Finding(
            COMPARE,
            "FAIL",
            f"FAIL: {a:.2f} -> {b:.2f}, {task.worse} turned wrong and {task.better} right",
        )
    if verdict.outcome == "ERROR":
        yield Finding(COMPARE, "ERROR", "; ".join(verdict.reasons))
    for line in task.warnings:
        if (name := line.partition(":")[0]) in NAMED:
            yield Finding(COMPARE, name, line)


def _of_run(task: TaskReport, trial: Trial) -> Iterator[Finding]:
    for one in task.degradations:
        yield Finding(ALARM, one.measure, describe(one))
    if task.attribution is not None:
        yield from _attributed(task.attribution, ATTRIBUTION, trial)
    result = task.result
    if result.failed:
        yield Finding(
            COUNTS, "failed", f"{result.failed} of {result.planned} failed: {dict(result.failures)}"
        )
    if again := sum(task.traffic.retries.values()):
        yield Finding(
            COUNTS,
            "asked again",
            f"{again} requests were asked again: {dict(task.traffic.retries)}",
        )
    if empty := result.outcomes.get(Outcome.EMPTY, 0):
        yield Finding(COUNTS, "empty", f"{empty} of {result.scored} answers are empty")


def _attributed(found: Attribution, detector: str, trial: Trial) -> Iterator[Finding]:
    for row in found.rows:
        if row.accused:
            who = "" if _is_right(row.worker, trial) else ", and not the one that has the fault"
            others = f"{row.others_bad} of {row.others} of the others"
            said = (
                f"{row.role} {row.worker}: {row.bad} {row.measure} of {row.answers}, and {others}"
            )
            yield Finding(detector, f"{row.role} by {row.measure}{who}", said)
    for slow in found.times:
        if slow.slow:
            who = (
                ""
                if slow.worker == "" or _is_right(slow.worker, trial)
                else ", and not the one that has the fault"
            )
            said = told_of_slow(slow)
            yield Finding(detector, f"{said.partition(':')[0]} {slow.role}{who}", said)


def _is_right(worker: str, trial: Trial) -> bool:
    """Return whether every part of an accused worker, or pair, has the fault."""
    return bool(trial.blamed) and all(host in worker for host in trial.blamed)
