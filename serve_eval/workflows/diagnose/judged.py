"""Collect the outcomes in a folder that is diagnosed: of a run, a comparison, a suite, servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.evidence.probe_judging import UNSOUND
from serve_eval.frozen import freeze, freeze_places
from serve_eval.plugins.scope import with_scope
from serve_eval.report.ci_result import OneLine
from serve_eval.report.summary.figures import SummaryTask, summarise_task
from serve_eval.report.summary.headline import ORDER
from serve_eval.report.task_line import make_compared_line, make_task_line
from serve_eval.schema import Comparison, SuiteReport, Verdict, VerdictOutcome, Verification
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.stats.judgement import Reason
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import PAGE_FILE, SUITE_RUNS
from serve_eval.storage.folder_results import KILLED, list_ended_early
from serve_eval.storage.sessions import INTERRUPTED
from serve_eval.storage.story_files import COMPARE, VERIFY
from serve_eval.storage.story_results import find_suite_report, find_suite_rows, locate_runs
from serve_eval.workflows.diagnose.evidence import (
    Evidence,
    TaskEvidence,
    describe_end,
    find_end,
    has_only_end,
    list_unstarted,
    read,
)
from serve_eval.workflows.diagnose.finding import SIDE_SHARE

ENDED_EARLY, STOPPED = "ERROR", "INTERRUPTED"
"""The outcomes of a command without a result: an error, or a signal, ended it."""


@freeze_places
class FolderOutcome:
    """A task of a run or of a comparison, a run that never started, or a server, with its outcome.

    `run` is the label of the run in the diagnosis whose findings are about it. `summary` and
    `line` are those of its verdict; without one, `why` and `fix` say how it ended. `left_open`:
    missing answers leave its verdict open, or turn it into an error.
    """

    name: str
    outcome: str
    _: KW_ONLY
    run: str | None = None
    task: str = ""
    summary: SummaryTask | None = None
    line: OneLine | None = None
    why: str = ""
    fix: str = ""
    left_open: bool = False


@freeze
class FolderOutcomes:
    """The outcomes in a folder, with what is known of all of them.

    `again` says in words how to go on, `commands` come next, and `page` is the page of the result
    next to that of the diagnosis ("": there is none).
    """

    judged: tuple[FolderOutcome, ...]
    outcome: str = ""
    counted_as: str = ""
    noun: str = "tasks"
    model: str | None = None
    endpoint: str = ""
    started_at: str = ""
    rehearsal: bool = False
    again: str = ""
    commands: tuple[str, ...] = ()
    page: str = ""


@freeze
class ReadFolder:
    """The runs of a folder by label. `compared`: they are the sides of a comparison."""

    folder: Path
    runs: Sequence[tuple[str, Evidence]]
    compared: bool


@with_scope
def read_folder(folder: Path, include_path: Sequence[str] = ()) -> ReadFolder:
    """Read the folder of a run, a comparison or a suite. Raises RunFolderError."""
    compared = COMPARE.has_plan(folder)
    share = SIDE_SHARE if compared else 1.0
    runs = [
        (label, read(path, include_path=include_path, share=share)) for label, path in _runs(folder)
    ]
    return ReadFolder(folder=folder, runs=runs, compared=compared)


def _runs(folder: Path) -> list[tuple[str, Path]]:
    """Return the run folders to diagnose, each with its label."""
    if COMPARE.has_plan(folder):
        return locate_runs(folder)
    if has_only_end(folder) and not (folder / SUITE_RUNS).is_dir():
        return []
    if (folder / SUITE_RUNS).is_dir() and not run_folder.holds_run(folder):
        found = sorted(
            path for path in (folder / SUITE_RUNS).iterdir() if run_folder.holds_run(path)
        )
        if not found and not has_only_end(folder):
            raise RunFolderError(f"{folder / SUITE_RUNS} holds no run", hint="Run the suite first.")
        return [(path.name, path) for path in found]
    return [("", folder)]


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
            one.name,
            ENDED_EARLY,
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
            yield FolderOutcome(name, _name_end(run.folder), run=label, task=task.name)
            continue
        row = rows.get(task.name)
        outcome = task.report.verdict.outcome if row is None else row.outcome
        yield FolderOutcome(
            name,
            outcome.value,
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
                    "comparison",
                    _name_end(folder),
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
            one.task,
            one.verdict.outcome.value,
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


MEASURED = "word_problems"
"""The task that measures whether another model is worse; it needs no data."""


def judge_servers(found: Verification, page: str) -> FolderOutcomes:
    """Return the outcome of each server with its reason, and the comparison that measures it.

    That needs the addresses of the reference and of a server, which those of a launcher have not:
    they ended with the verification.
    """
    named = "; ".join(found.named)
    judged = [FolderOutcome(one.name, one.outcome.value, why=one.why) for one in found.sides]
    judged += [
        FolderOutcome(one.name, ENDED_EARLY, why=f"not verified: {one.why}") for one in found.lost
    ]
    red = [one.name for one in found.sides if one.outcome in UNSOUND and one.part_of is None]
    pair = [found.reference, *red[:1]]
    both = len(pair) > 1 and all(one.startswith(("http://", "https://")) for one in pair)
    a, b = map(quote_word, pair) if both else ("", "")
    measure = "compare it with a sound server: that measures whether its answers are worse"
    return FolderOutcomes(
        judged=tuple(judged),
        noun="servers",
        model=found.model,
        started_at=found.started_at,
        rehearsal=found.rehearsal,
        again="; ".join(filter(None, (named, measure if red else ""))),
        commands=(f"serve-eval compare {a} {b} --tasks {MEASURED}",) if both else (),
        page=page,
    )


def judge_stopped(folder: Path) -> FolderOutcomes:
    """Return how a verification without a result ended."""
    why = f"the verification in {folder} did not finish: it has no verdict"
    ended = next(list_ended_early(folder, most_deep=1, most_folders=1), None)
    outcome = ENDED_EARLY
    if ended is not None:
        outcome = ENDED_EARLY if ended.outcome == KILLED else ended.outcome
        cause = "it was killed" if ended.outcome == KILLED else ended.cause
        why = "; ".join(filter(None, (why, cause)))
    return FolderOutcomes(
        judged=(FolderOutcome("verify", outcome, why=why),),
        noun="servers",
        again=f"the same serve-eval verify command with -o {quote_path(folder)}",
    )
