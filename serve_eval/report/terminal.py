"""Print the report: a table of verdicts, the reasons below it, and the run folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.capabilities.sampling import describe_defaults
from serve_eval.evaluation.endpoint.deployment import describe
from serve_eval.evaluation.plan.again import write_resume_command
from serve_eval.plugins.withheld import name_folders
from serve_eval.report import engine, lines, repeats
from serve_eval.report.attribution import sentences, table
from serve_eval.report.layout import fit_tables, say, tell_rehearsal
from serve_eval.report.lines import number, plain
from serve_eval.schema import (
    MEAN,
    Attribution,
    FailureKind,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.shell_words import quote_path
from serve_eval.stats.availability import failure_rate_upper
from serve_eval.verdicts.references import describe_taken, spec_text

SHOWN_ERRORS = 3
"""Number of different scorer errors that are shown per task."""

_STYLES = {
    VerdictOutcome.PASS: "bold green",
    VerdictOutcome.FAIL: "bold red",
    VerdictOutcome.ERROR: "bold red",
    VerdictOutcome.NO_REFERENCE: "bold",
}
RED = (VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE, VerdictOutcome.ERROR)
_COLUMNS = (
    "task",
    "n",
    "failed",
    "truncated",
    "unparsed",
    "evaluated",
    "reference",
    "threshold",
    "theta",
    "alpha",
    "beta",
    "sigma",
    "verdict",
)


def render(report: Report, out_dir: Path, console: Console) -> None:
    """Print the verdict table and its explanation.

    On a narrow terminal the table has a column per task.
    """
    tell_rehearsal(report.rehearsal, console)
    spec = spec_text(report.plan.accuracy_spec)
    say(
        console,
        f"model {report.plan.model}, specification {spec},"
        f" {report.endpoint.base_url or 'no request was sent'}",
    )
    servers = (f"{kind}: {what}" for kind, what in describe(report.endpoint.info).items())
    for line in (*servers, *lines.describe_preset(report.plan)):
        say(console, line)
    console.print(*fit_tables(_COLUMNS, list(map(_cells, report.tasks)), console.width), sep="\n\n")
    for task in report.tasks:
        for line in explain(task, write_resume_command(out_dir, report.plan)):
            say(console, f"{task.result.task}: {line}")
        if task.attribution is not None:
            attribution(task.attribution, task.result.task, console)
    for load in report.loads[-1:]:
        say(console, lines.session_load(load))
    defaults = [f"sampling defaults: {one}" for one in describe_defaults(report.sampling_defaults)]
    for line in (
        *lines.describe_efforts(report),
        *engine.describe_engines(report),
        *lines.describe_path(report.path),
        *defaults,
    ):
        say(console, line)
    for warning in report.warnings:
        say(console, f"warning: {warning}")
    if report.plan.integration_test:
        say(console, "INTEGRATION TEST: ONE SAMPLE PER TASK, NOTHING WAS JUDGED")
    say(console, f"run folder: {out_dir}")


def diagnose_command(out_dir: Path, include_path: Sequence[str] = ()) -> str:
    """Return the command that explains a red verdict; it may need folders of code."""
    return f"serve-eval diagnose {quote_path(out_dir)}{name_folders(include_path)}"


def tell_how_to_score_again(resume: str) -> str:
    """Return what to do about a failed scorer; `resume` is the command that resumes the run."""
    return (
        f"after fixing the scorer, {resume} scores these answers without new requests;"
        " --scorer-timeout gives the scorer more time"
    )


def _cells(task: TaskReport) -> list[Text]:
    cells = list(map(Text, _row(task)))
    cells[-1].stylize(_STYLES.get(task.verdict.outcome, "bold yellow"))
    return cells


def _row(task: TaskReport) -> list[str]:
    result, verdict = task.result, task.verdict
    return [
        result.task,
        str(result.planned),
        str(result.failed),
        str(result.truncated),
        str(result.unparsed),
        _value(task),
        number(verdict.reference),
        number(verdict.threshold),
        number(verdict.theta),
        plain(verdict.alpha),
        plain(verdict.beta),
        plain(verdict.sigma),
        verdict.outcome.value,
    ]


def _value(task: TaskReport) -> str:
    """Return the value, its range if answers are missing, or an estimate after an early stop."""
    early = task.verdict.early
    if early is not None and early.stopped:
        return f"~{number(early.estimate)}"
    if task.result.failed and task.verdict.bounds is not None:
        return f"{task.verdict.bounds[0]:.3f}..{task.verdict.bounds[1]:.3f}"
    return number(task.verdict.evaluated)


def explain(task: TaskReport, resume: str) -> Iterator[str]:
    """Yield lines that explain the row of a task in the table.

    `resume` is the command that resumes the run.
    """
    yield from _losses(task.result, resume)
    yield lines.traffic_of(task)
    yield from _figures(task)
    yield from _basis(task)
    yield from _decision(task.verdict)


def _losses(result: TaskResult, resume: str) -> Iterator[str]:
    """Yield lines about the samples without a score."""
    if result.failed and result.value is not None:
        yield f"{result.value:.3f} over the {result.scored} of {result.planned} scored samples"
    if result.failures:
        yield _failures(result)
    for error in result.scorer_errors[:SHOWN_ERRORS]:
        yield f"{FailureKind.SCORER_ERROR}: {error.line}"
    if len(result.scorer_errors) > SHOWN_ERRORS:
        yield f"{len(result.scorer_errors) - SHOWN_ERRORS} more scorer errors in report.json"
    if result.scorer_errors:
        yield tell_how_to_score_again(resume)
    for line in result.hook_errors:
        yield f"left out of the figures: {line}"


def _failures(result: TaskResult) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.failures.items())
    unscored = sum(
        result.failures.get(kind, 0) for kind in (FailureKind.JUDGE_ERROR, FailureKind.SCORER_ERROR)
    )
    bound, lost = "", result.failed - unscored
    if lost and not result.spared:
        most = failure_rate_upper(lost, result.planned)
        bound = f"; with 95 % confidence at most {most:.2%} of such requests fail"
    return f"failures: {kinds}{bound}"


def _figures(task: TaskReport) -> Iterator[str]:
    """Yield lines about the other figures of a task."""
    result = task.result
    if task.traffic.acceptance is not None:
        yield lines.acceptance(task.traffic.acceptance, task.verdict.acceptance)
    if result.stability is not None:
        yield repeats.describe_repeats(result)
        yield f"repeats: {repeats.describe_agreement(result.stability)}"
    if result.aggregation != MEAN.name:
        yield f"the value is the {result.aggregation}"
    if beside := {**result.parts, **result.secondary}:
        yield ", ".join(f"{part} {value:.3f}" for part, value in beside.items())
    if result.modes:
        yield f"not correct: {', '.join(f'{mode} {n}' for mode, n in result.modes.items())}"


def _basis(task: TaskReport) -> Iterator[str]:
    """Yield lines about the reference, protocol, isolation and judges of a task."""
    verdict, planned = task.verdict, task.result.planned
    if (
        verdict.num_samples is not None
        and verdict.threshold is not None
        and verdict.num_samples != planned
    ):
        runs = None if task.reference is None else task.reference.runs
        of_runs = runs is not None and runs.n == verdict.num_samples
        whose = "the n of the reference," if of_runs else "the registered n ="
        yield f"the test uses {whose} {verdict.num_samples}; the run has {planned}"
    if (found := task.reference) is not None:
        source = f", {found.source}" if found.source else ""
        taken = describe_taken(found)
        source += f", taken at {taken}" if taken else ""
        yield f"reference: {Path(found.file).name}:{found.line}, {spec_text(found.spec)}{source}"
        yield f"protocol: {verdict.protocol}"
    for isolation in task.isolations:
        yield f"answers were run {lines.describe_isolation(isolation)}"
    for judge in task.judges:
        yield lines.describe_judge(judge)


def _decision(verdict: Verdict) -> Iterator[str]:
    """Yield lines about what decided the verdict."""
    if verdict.early is not None:
        yield f"early stop: {lines.early_stop(verdict.early)}"
    if verdict.paired is not None:
        yield f"paired: {lines.describe_paired(verdict.paired)}"
        if verdict.paired.anchors is not None:
            runs = verdict.paired.candidate_runs
            yield f"anchors: {lines.anchors_text(verdict.paired.anchors, runs)}"
    yield from verdict.reasons
    for warning in verdict.warnings:
        yield f"warning: {warning}"


def attribution(told: Attribution, name: str, console: Console) -> None:
    """Print which workers gave the bad answers."""
    for sentence in sentences(told):
        say(console, f"{name}: {sentence}")
    if (rows := table(told)) is not None:
        console.print(rows)
