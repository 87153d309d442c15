"""Write the numbers of a summary as a reader wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path

from serve_eval.frozen import freeze
from serve_eval.plan.command_line import write_resume_command
from serve_eval.schema import (
    Acceptance,
    IdentityFinding,
    Metric,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
    WrongExample,
)
from serve_eval.verdicts import validity

POINTS = 100.0
"""Scale of a metric whose values are points out of 100."""
ONE_SIDED = "one-sided "
"""Stands before a p, since the interval next to it has two sides."""


def in_points(metric: Metric) -> bool:
    """Return True if the values of a metric are points out of 100."""
    return (metric.scale, metric.lo, metric.hi) == (POINTS, 0.0, 1.0)


def figure(value: float, metric: Metric) -> str:
    """Return a value with one decimal, or with four digits if it is not in points."""
    return write_figure(value, points=in_points(metric))


def write_figure(value: float, *, points: bool) -> str:
    """Return a value like `figure`: 83.8, or 1.890 if it is not in points."""
    return f"{value:.1f}" if points else f"{value:#.4g}".rstrip(".")


def add_sign(value: float, metric: Metric) -> str:
    """Return a difference with its sign, like `figure`."""
    return f"{'' if value < 0.0 else '+'}{figure(value, metric)}"


def span(ends: tuple[float, float], metric: Metric) -> str:
    """Return an interval: "80.3 to 86.8"."""
    low, high = (figure(end, metric) for end in ends)
    return low if low == high else f"{low} to {high}"


def p_in_words(p: float) -> str:
    """Return the p-value of a drop with its kind, or its bound if it is too small to be read.

    It is one-sided, unlike the interval next to it.
    """
    return f"{ONE_SIDED}{'p < 0.0001' if p < 0.0001 else f'p = {p:.4f}'}"


def count(n: int, one: str, more: str | None = None) -> str:
    """Return a count with its noun: "1 answer", "1,319 answers"."""
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def show_value(task: SummaryTask) -> str:
    """Return the value, its range if answers are missing, or an estimate by the samples asked."""
    result, verdict = task.result, task.verdict
    if verdict.estimated:
        estimate = verdict.estimate
        return "-" if estimate is None else f"~{figure(estimate, result.metric)}"
    if result.failed and verdict.bounds is not None:
        return span(verdict.bounds, result.metric)
    value = verdict.evaluated if verdict.evaluated is not None else result.value
    return "-" if value is None else figure(value, result.metric)


def describe_bound(task: SummaryTask) -> str:
    """Return the value if the cut answers were right, or "" if that says nothing."""
    return validity.describe_bound(task.result, partial(figure, metric=task.result.metric))


def bound_next_to_value(task: SummaryTask, *, brief: bool = False) -> str:
    """Return the same, or "" if few answers were cut and they could not turn the verdict."""
    turns = any(one.startswith(validity.CUT) for one in task.verdict.warnings)
    told = describe_bound(task) if turns or validity.are_many(task.result) else ""
    if not brief or not told:
        return told
    missing = f" and {task.result.failed:,} missing" if " missing " in told else ""
    return f"{told.partition(' ')[0]} if {task.result.cut_answers:,} cut{missing} were right"


def change(task: SummaryTask) -> float | None:
    """Return value minus reference, or None if one of them is not known in full."""
    value, reference = task.verdict.evaluated, task.verdict.reference
    if value is None or reference is None or task.result.failed:
        return None
    return value - reference


@freeze
class SummaryTask:
    """A result with its verdict.

    `before` is the breakdown of the same prompts by the reference, empty if not known. `names` are
    those of the value and of the reference. `default_rule` judges if nothing else is chosen
    (None: any may). `resume` is the command that resumes the run.
    """

    result: TaskResult
    verdict: Verdict
    before: Mapping[str, object] = field(default_factory=dict)
    acceptance: Acceptance | None = None
    example: WrongExample | None = None
    names: tuple[str, str] = ("", "reference")
    default_rule: str | None = None
    resume: str = ""


def summarise_tasks(report: Report, out_dir: Path) -> list[SummaryTask]:
    """Return what the summary needs of each task of the run in a folder."""
    resume = write_resume_command(out_dir, report.plan)
    return [summarise_task(task, resume) for task in report.tasks]


def summarise_task(task: TaskReport, resume: str = "") -> SummaryTask:
    """Return what the summary needs of a task of a run."""
    return SummaryTask(
        result=task.result,
        verdict=task.verdict,
        before=task.reference_breakdown,
        acceptance=task.traffic.acceptance,
        example=task.example,
        resume=resume,
    )


def write_nats(nats: float) -> str:
    """Return a distance with its real size: two digits, and 0 only for exactly 0."""
    return "0" if nats == 0 else f"{nats:.2g}"


def write_number(value: float, decimals: int = 3) -> str:
    """Return a number with these decimals, or with two digits if they would all be zero."""
    text = f"{value:.{decimals}f}"
    if value and not text.strip("-0."):
        return f"{value:.2g}"
    return text


def describe_identity(found: IdentityFinding) -> Iterator[tuple[str, str]]:
    """Yield what the probes of a reference show of a deployment, and what they cannot show."""
    if not found.accepted:
        yield "identity", f"not accepted, so the task was asked: {found.why}"
        return
    yield (
        "identity",
        f"{found.probes} probes and {found.whole} whole answers are those of the reference,"
        f" {found.tokens:,} tokens; nothing else was asked, so there is no value",
    )
    yield (
        "unseen",
        f"a fault that touches fewer than {found.unseen:.1%} of the requests would be missed with a"
        " probability of more than .05",
    )
    yield (
        "unseen",
        f"load of more than {found.in_flight} requests at once, prompts beyond {found.longest:,}"
        " tokens, later tokens, the sampler",
    )
    yield "unseen", f"changes since {found.at}"
