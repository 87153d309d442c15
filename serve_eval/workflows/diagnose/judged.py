"""Collect the outcomes in a folder that is diagnosed: of a run, a comparison, a suite, servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from serve_eval.report.one_line import OneLine
from serve_eval.report.summary.summary_task import SummaryTask, summarise_task
from serve_eval.report.summary.table import ORDER
from serve_eval.report.task_line import make_compared_line, make_task_line
from serve_eval.schema import Comparison, SuiteReport, Verdict, VerdictOutcome, Verification
from serve_eval.shell_words import quote_path
from serve_eval.stats.judgement import Reason
from serve_eval.storage.file_names import PAGE_FILE
from serve_eval.storage.reports.story_results import find_suite_report, find_suite_rows
from serve_eval.storage.sessions import INTERRUPTED
from serve_eval.storage.story_files import COMPARE, VERIFY
from serve_eval.workflows.diagnose.ended import describe_end, find_end, list_unstarted
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.outcomes import (
    ENDED_EARLY,
    STOPPED,
    FolderOutcome,
    FolderOutcomes,
)
from serve_eval.workflows.diagnose.read_folder import ReadFolder
from serve_eval.workflows.diagnose.verified import judge_servers, judge_stopped

_MISSING = (Reason.TOO_MANY_MISSING.value, Reason.MISSING_RESULTS.value)
"""Beginnings of the reasons of verdicts that missing answers leave open."""


def list_outcomes(answers: ReadFolder) -> FolderOutcomes:
    """Return the outcomes in a folder that was read."""
    folder = answers.folder
    page = PAGE_FILE if (folder / PAGE_FILE).is_file() else ""
    if answers.compared:
        return _judge_comparison(answers, page)
    if (found := VERIFY.find(folder, Verification)) is not None and not answers.runs:
        return judge_servers(found, page)
    unstarted = list_unstarted(folder)
    if not answers.runs and not unstarted:
        return judge_stopped(folder)
    report = find_suite_report(folder)
    alone = len(answers.runs) == 1 and not answers.runs[0][0]
    judged = [one for label, run in answers.runs for one in _judge_run(label, run)]
    judged += [
        FolderOutcome(
            name=one.name,
            outcome=ENDED_EARLY,
            why=f"ended before its first request by: {' '.join(one.error.message.split())}",
            fix=" ".join(one.error.hint.split()),
        )
        for one in unstarted
        if one.error is not None
    ]
    suite = folder if report is not None else folder.absolute().parent.parent
    resume = (f"serve-eval run --resume {quote_path(suite)}",) if unstarted else ()
    reports = [run.report for _, run in answers.runs if run.report is not None]
    return FolderOutcomes(
        judged=tuple(judged),
        outcome="" if report is None else report.verdict,
        counted_as="" if report is None else count_suite(report),
        model=answers.runs[0][1].plan.model or "" if alone else "",
        endpoint=answers.runs[0][1].base_url if alone else "",
        started_at=reports[0].started_at if alone and reports else "",
        rehearsal=any(one.rehearsal for one in reports)
        or (report is not None and report.rehearsal),
        commands=resume,
        page=page if alone else "",
    )


def count_suite(report: SuiteReport) -> str:
    """Return the name of a suite with the number of its tasks by outcome."""
    counts = Counter(row.outcome for row in report.rows)
    told = ", ".join(f"{counts[one]} {one.value}" for one in ORDER if counts[one])
    return f"suite {report.name}: {told}"


def _judge_run(label: str, run: Evidence) -> Iterator[FolderOutcome]:
    """Yield the outcomes of the tasks of a run: those in its suite, if that judged otherwise."""
    rows = find_suite_rows(run.folder)
    for task in run.tasks:
        name = f"{label}/{task.name}" if label else task.name
        if task.report is None:
            yield FolderOutcome(name=name, outcome=_name_end(run.folder), run=label, task=task.name)
            continue
        row = rows.get(task.name)
        outcome = task.report.verdict.outcome if row is None else row.outcome
        yield FolderOutcome(
            name=name,
            outcome=outcome.value,
            run=label,
            task=task.name,
            summary=summarise_task(task.report),
            line=_make_line(run, task),
            left_open=is_left_open(task.report.verdict),
        )


def _make_line(run: Evidence, task: TaskEvidence) -> OneLine:
    assert task.report is not None
    return make_task_line(
        summarise_task(task.report),
        run.plan.model,
        attribution=task.report.attribution,
        degradations=task.report.degradations,
    )


def _name_end(folder: Path) -> str:
    return STOPPED if find_end(folder) == INTERRUPTED else ENDED_EARLY


def is_left_open(verdict: Verdict) -> bool:
    """Return True if missing answers leave a verdict open, or turn it into an error."""
    return any(reason.startswith(_MISSING) for reason in verdict.reasons)


def _judge_comparison(answers: ReadFolder, page: str) -> FolderOutcomes:
    """Return the outcomes on B; of a comparison without a result, how it ended."""
    folder, (_, b) = answers.folder, answers.runs[1]
    comparison = COMPARE.find(folder, Comparison)
    if comparison is None:
        end = describe_end(find_end(folder))
        why = f"the comparison in {folder} did not finish: it has no verdict"
        return FolderOutcomes(
            judged=(
                FolderOutcome(
                    name="comparison",
                    outcome=_name_end(folder),
                    run="B",
                    why=f"{why}; {end}" if end else why,
                ),
            ),
            model=b.plan.model or "",
            endpoint=b.base_url,
            again=f"the same serve-eval compare command with -o {quote_path(folder)}",
        )
    return FolderOutcomes(
        judged=tuple(_judge_pairs(comparison)),
        model=comparison.b.model or "",
        endpoint=comparison.b.base_url,
        started_at=comparison.started_at,
        rehearsal=comparison.rehearsal,
        commands=_ask_servers(comparison, b),
        page=page,
    )


def _judge_pairs(comparison: Comparison) -> Iterator[FolderOutcome]:
    for one in comparison.tasks:
        yield FolderOutcome(
            name=one.task,
            outcome=one.verdict.outcome.value,
            run="B",
            task=one.task,
            summary=SummaryTask(
                result=one.b, verdict=one.verdict, names=("B", "A"), default_rule="paired"
            ),
            line=make_compared_line(one, comparison.b.model),
            left_open=is_left_open(one.verdict),
        )


def _ask_servers(comparison: Comparison, b: Evidence) -> tuple[str, ...]:
    """Return the command that asks each server of B, and each pair, if B failed."""
    failed = any(one.verdict.outcome is VerdictOutcome.FAIL for one in comparison.tasks)
    return (b.attribute,) if failed and b.has_legs and b.may_answer else ()
