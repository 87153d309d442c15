"""Apply rules about the setting of a run: protocol, data, model, sampling defaults, and samples."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from serve_eval.evaluation.capabilities.sampling import (
    NEUTRAL,
    advise,
    list_different_kept,
    name_difference,
    read_kept,
)
from serve_eval.evaluation.prepare import OTHER_DATA
from serve_eval.plan.prepared_task import DATASET
from serve_eval.schema import MEAN, TaskReport, VerdictOutcome
from serve_eval.shell_words import quote_word
from serve_eval.verdicts.pairing import is_higher_better
from serve_eval.verdicts.references import describe_difference
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import DEFAULTS, Finding

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
        MISSING,
        told,
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
            "scorer_error",
            f"{error.line}; after the scorer is fixed, no request has to be sent again",
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
        "other_model",
        f"the endpoint lists {', '.join(listed)}, but the run requests and judges {wanted}",
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
            "other_launch",
            difference,
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
        "first_token_only",
        (
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
    return Finding(rule, told, change=change, count=n, of=n, lost=len(task.lost), task=task.name)


RULE = "protocol"
_CUT = "truncated"
"""The rule about answers that the limit cuts."""
_LIMIT = "max_tokens"
"""The field whose effect is bounded: it changes no answer but those that it cuts."""


def find_other_protocol(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the reference was measured under a different protocol.

    Another max_tokens alone explains a drop only as far as more answers are cut than in the
    reference's runs. If that is less than half of it, the finding is `minor`.
    """
    if task.report is None or task.passes:
        return
    told = task.report.verdict.protocol or ""
    _, allowed, fields = told.partition("mismatch allowed: ")
    if allowed:
        names = [field.strip() for field in fields.split(",")]
        flags = " ".join(f"--allow-mismatch {name}" for name in names)
        known = _bound_effect(task, task.report) if names == [_LIMIT] else None
        more, minor = ("", False) if known is None else known
        yield _describe(
            task,
            f"the reference was measured under a different protocol: {fields} differ, and the plan"
            f" allows it{more}",
            f"use the protocol of the reference, without {flags}",
            minor=minor,
        )
    if "suite_exact would change" in told and task.outcome is VerdictOutcome.FAIL:
        yield _describe(
            task,
            f"the protocol of the reference is {told}",
            f"--set {task.word}.suite_exact=true",
        )


def _describe(task: TaskEvidence, told: str, change: str, *, minor: bool = False) -> Finding:
    n = len(task.asked)
    return Finding(
        RULE,
        told,
        change=(change,),
        count=n,
        of=n,
        lost=len(task.lost),
        task=task.name,
        leads=not minor,
        minor=minor,
    )


def _bound_effect(task: TaskEvidence, report: TaskReport) -> tuple[str, bool] | None:
    """Return how much of the drop the limit explains at most, and if that is less than half of it.

    The bound is that with as many cut answers right as exceed those of the reference (Manski 1989).
    None: it is not known, since finish reasons are of no known server, or answers do not
    contribute to the value one by one.
    """
    result, reference = report.result, report.reference
    lo, hi, scale = result.metric.lo, result.metric.hi, result.metric.scale
    if reference is None or result.value is None or result.unlisted_finishes:
        return None
    higher = is_higher_better(result.metric, reference)
    best = hi if higher else lo
    gains = [
        None if best is None or one.line is None else abs(best - one.line.value)
        for one in task.texts
        if one.response is not None and one.response.truncated
    ]
    cut, answers = _read_reference_cuts(report)
    new = max(0, len(gains) - cut * result.scored // max(1, answers))
    if new and (result.aggregation != MEAN.name or None in gains):
        return None
    gain = math.fsum(sorted((one or 0.0 for one in gains), reverse=True)[:new])
    points = scale * gain / max(1, result.scored)
    drop = reference.value - result.value if higher else result.value - reference.value
    if drop <= 0:
        return None
    there = f" ({cut} of {answers} in the reference's runs)" if cut else ""
    told = (
        f"; {len(gains)} of {len(task.texts)} answers are cut{there}, which explains at most"
        f" {points:.1f} of the {drop:.1f} points that are lost"
    )
    return told, 2 * points < drop


def demote_cuts(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, of which those about cut answers are `minor` where the limit is.

    They speak of the same answers, whose surplus is not known one by one.
    """
    kept = list(found)
    minor = {one.task for one in kept if one.rule == RULE and one.minor}
    return [
        replace(one, minor=True) if one.rule == _CUT and one.task in minor else one for one in kept
    ]


def _read_reference_cuts(report: TaskReport) -> tuple[int, int]:
    """Return how many answers of the reference's runs were cut, and of how many.

    (0, 0) if that is not known, so that all cut answers of this run count as new.
    """
    effect = report.verdict.cut
    return (0, 0) if effect is None else (effect.reference_cut or 0, effect.reference_answers or 0)


SAME = (
    "--set server_defaults=neutral",
    "start the servers with the same generation_config.json (vLLM: --generation-config vllm)",
)

_BY_REFERENCE = "the reference's servers added the same, by name: it records no values"


def find_added(run: Evidence, other: Evidence | None, name: str) -> Iterator[Finding]:
    """Yield a finding per task if the server adds fields that change its answers.

    Fields that the servers of the reference added too, or those of the `other` side of a
    comparison, which has that `name`, explain no difference from them.
    """
    for task in run.tasks:
        if task.report is None or task.passes or not (kept := read_kept(task.report)):
            continue
        if other is None:
            same, there = _list_of_reference(task.report), _BY_REFERENCE
        else:
            same = _list_of_side(task, run, other)
            there = f"the server of {name} adds the same"
        new = [one for one in kept if one not in same]
        told = (
            f"the server adds {', '.join(new or kept)} to requests that lack it"
            " (generation_config.json?), "
        )
        yield Finding(
            DEFAULTS,
            f"{told}which changes answers" if new else f"{told}and {there}",
            change=_list_changes(new, run) if new else (),
            count=len(task.asked),
            of=len(task.asked),
            explains=None if new else 0,
            lost=len(task.lost),
            task=task.name,
            leads=bool(new),
        )


def _list_of_reference(report: TaskReport) -> Collection[str]:
    """Return the fields that the servers of a reference added, as far as it records them."""
    runs = None if report.reference is None else report.reference.runs
    return () if runs is None else runs.server_adds or ()


def _list_of_side(task: TaskEvidence, run: Evidence, other: Evidence) -> Collection[str]:
    """Return the fields that the other side adds to the same task, with no other value known."""
    if run.report is None or other.report is None:
        return ()
    differ = list_different_kept(run.report, other.report)
    there = [one for one in other.report.tasks if one.result.task == task.name]
    return [field for one in there for field in read_kept(one) if field not in differ]


def _list_changes(names: Collection[str], *runs: Evidence) -> tuple[str, ...]:
    """Return how to ask without the servers' fields, and how to start servers without them."""
    reports = [run.report for run in runs if run.report is not None]
    ways = advise(names, *(report.sampling_defaults for report in reports))
    return (*(one.replace(NEUTRAL, SAME[0]) for one in ways), SAME[1])


def find_unlike_defaults(a: Evidence, b: Evidence) -> Iterator[Finding]:
    """Yield a finding per task if the servers of both sides add unlike fields to its requests."""
    if a.report is None or b.report is None:
        return
    if not (kept := list_different_kept(a.report, b.report)):
        return
    told = name_difference(a.report.sampling_defaults, b.report.sampling_defaults)
    for task in b.tasks:
        yield Finding(
            DEFAULTS,
            told,
            change=_list_changes(kept, a, b),
            count=len(task.asked),
            of=len(task.asked),
            lost=len(task.lost),
            task=task.name,
        )
