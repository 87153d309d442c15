"""Rules about the setting of a run: data, model, number of samples and servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from serve_eval.evaluation.prepare import OTHER_DATA
from serve_eval.plan.prepared_task import DATASET
from serve_eval.schema import VerdictOutcome
from serve_eval.shell_words import quote_word
from serve_eval.verdicts.references import describe_difference
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding

MISSING = "missing"
"""The rule about a verdict that only missing answers leave open."""
_MOST_ERRORS = 3
"""Number of scorer errors that are reported, the most frequent first."""


def data(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the data differs from the published set but uses its reference."""
    if (
        task.report is None
        or task.passes
        or task.report.reference is None
        or DATASET not in run.plan.allow_mismatch
    ):
        return
    for note in task.report.verdict.warnings:
        if note.startswith(OTHER_DATA):
            change = ("serve-eval data check", f"without --allow-mismatch {DATASET}")
            yield _fact(task, "data", f"{note}; its reference is used nevertheless", change)


def too_few(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the samples are too few to decide, although no answer is missing."""
    if (
        task.report is None
        or task.outcome is not VerdictOutcome.INCONCLUSIVE
        or task.report.result.failed
        or task.report.result.doubted
    ):
        return
    verdict, planned = task.report.verdict, task.report.result.planned
    more = [] if run.plan.limit is None else [f"without --limit {run.plan.limit}"]
    more += ["without --samples"] if run.plan.samples or run.plan.samples_of else []
    more += [f"--repeats {2 * task.repeats}", f"--set {task.word}.num_samples=N"]
    told = f"no answer is missing, but {planned} samples are too few to decide"
    if verdict.paired is not None and verdict.paired.lower is not None:
        told += (
            f": the drop may be up to {max(0.0, -verdict.paired.lower):.2f} points, and the"
            " tolerated drop is "
        )
        told += f"{verdict.paired.margin:.2f}"
    yield _fact(task, "too_few_samples", told, tuple(more))


def find_missing(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if only missing answers leave the verdict open.

    Other rules explain why they are missing.
    """
    if (
        task.report is None
        or task.outcome is not VerdictOutcome.INCONCLUSIVE
        or not task.report.result.failed
    ):
        return
    result = task.report.result
    told = f"{result.failed} of {result.planned} answers are missing, which leaves the verdict open"
    threshold = find_threshold(task)
    if result.bounds is not None and threshold is not None:
        told += (
            f": the score is {result.bounds[0]:.3f} to {result.bounds[1]:.3f}, the threshold"
            f" {threshold:.3f}"
        )
    yield Finding(
        rule=MISSING,
        told=told,
        change=(run.resume,),
        count=result.failed,
        of=result.planned,
        explains=len(task.missing),
        lost=len(task.lost),
        task=task.name,
    )


def find_threshold(task: TaskEvidence) -> float | None:
    """Return the threshold of a task if its rule compares the value with it."""
    verdict = None if task.report is None else task.report.verdict
    return None if verdict is None else verdict.limit


def find_unscored(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each scorer error.

    The scorer raised or timed out. The answers exist but count as missing.
    """
    for error in () if task.report is None else task.report.result.scorer_errors[:_MOST_ERRORS]:
        yield Finding(
            rule="scorer_error",
            told=f"{error.line}; after the scorer is fixed, no request has to be sent again",
            change=(run.resume, "--set limits.scorer_timeout_s=S"),
            count=error.count,
            of=len(task.asked),
            lost=len(task.lost),
            task=task.name,
        )


def find_unsupported(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the probe found that the endpoint lacks what the task needs."""
    lacks = run.last.unsupported.get(task.name)
    if lacks is None or task.outcome is not VerdictOutcome.UNSUPPORTED:
        return
    told = f"the endpoint lacks {lacks.need}: {lacks.seen}"
    yield _fact(task, "unsupported", told, (lacks.help or "use an endpoint that supports it",))


def other_model(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if the endpoint does not list the model whose reference is used.

    trtllm-serve accepts any model name in a request.
    """
    listed, wanted = run.info.models, run.plan.model
    if not listed or wanted is None:
        return
    if any(_bare(name) == _bare(wanted) for name in listed):
        return
    yield Finding(
        rule="other_model",
        told=f"the endpoint lists {', '.join(listed)}, but the run requests and judges {wanted}",
        change=(f"--model {quote_word(listed[0])}", "--base-url URL of the right server"),
        count=1,
        of=1,
    )


def _bare(model: str) -> str:
    """Return a model's name without its owner or folder.

    trtllm-serve lists a folder by its last part.
    """
    return PurePosixPath(model.rstrip("/")).name.casefold()


def other_launch(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if servers were launched with other options than those of the reference."""
    counts: dict[str, int] = {}
    for task in run.tasks:
        known = None if task.report is None or task.passes else task.report.reference
        if known is not None and (difference := describe_difference(known, run.plan)):
            counts[difference] = counts.get(difference, 0) + 1
    for difference, count in counts.items():
        yield Finding(
            rule="other_launch",
            told=difference,
            change=(
                "launch the server as the reference's was, if this difference is not what you test",
            ),
            count=count,
            of=len(run.tasks),
            leads=False,
        )


def first_token_only(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if a disaggregated endpoint was asked only for answers of 1 or 2 tokens.

    Generation servers hardly take part in them.
    """
    tasks = [task for task in run.tasks if task.texts]
    if (
        not tasks
        or not _is_disaggregated(run)
        or any(task.max_tokens > FEW_TOKENS for task in tasks)
    ):
        return
    yield Finding(
        rule="first_token_only",
        told=(
            "the first token decides every answer, and it comes from a context server: the run"
            " does not test the generation servers"
        ),
        change=("--tasks gsm8k, or another task with long answers",),
        count=len(tasks),
        of=len(tasks),
    )


def _is_disaggregated(run: Evidence) -> bool:
    """Return True if the endpoint is known to be disaggregated."""
    roles = {worker.role for worker in run.info.workers}
    counted = run.info.hidden_retries is not None
    return counted or run.plan.launcher.name == "trtllm_disaggregated" or "generation" in roles


def _fact(task: TaskEvidence, rule: str, told: str, change: tuple[str, ...]) -> Finding:
    """Return a finding about the whole task, without the number of samples it explains."""
    n = len(task.asked)
    return Finding(
        rule=rule, told=told, change=change, count=n, of=n, lost=len(task.lost), task=task.name
    )
