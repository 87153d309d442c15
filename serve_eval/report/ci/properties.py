"""List the figures of a task as JUnit properties, for runs and comparisons alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from serve_eval.report.one_line import OneLine
from serve_eval.report.summary.figures import in_points
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.report.task_line import find_change
from serve_eval.schema import Metric, OtherRule, Verdict
from serve_eval.stats.planning import FLIP_RATE, compute_fail_power, find_least_drop


def list_figures(task: SummaryTask, line: OneLine) -> Iterator[tuple[str, str]]:
    """Yield each figure by its name, as far as it is known; `line` has the likeliest cause.

    Of a comparison, `value` is that of B and `reference` that of A. `drop` is that on the same
    prompts if they are paired; a gain is negative.
    """
    result, verdict = task.result, task.verdict
    change, ends = find_change(task)
    figures = {
        "value": verdict.evaluated,
        "reference": verdict.reference,
        "threshold": verdict.threshold,
        "drop": None if change is None else 0.0 - change,
        "p": None if verdict.paired is None else verdict.paired.p,
        "detects": compute_least_drop(verdict, result.metric),
    }
    spans = {
        "interval_95": result.interval,
        "drop_95": None if ends is None else (0.0 - ends[1], 0.0 - ends[0]),
    }
    yield "outcome", verdict.outcome.value
    yield "rule", verdict.rule
    yield from ((name, f"{value:.6g}") for name, value in figures.items() if value is not None)
    yield from ((name, f"{e[0]:.6g} {e[1]:.6g}") for name, e in spans.items() if e is not None)
    yield "samples", str(result.planned)
    yield "failed", str(result.failed)
    yield "repaired", str(result.doubted)
    yield "lost_with_server", str(result.restarted)
    yield "truncated", str(result.truncated)
    if result.looping:
        yield "looping", str(result.looping)
    if line.cause and not line.sure:
        yield "likely", line.cause


def list_other(other: OtherRule | None) -> dict[str, str]:
    """Return the other rule and its outcome as properties."""
    return {} if other is None else {"other_rule": other.rule, "other_outcome": other.outcome.value}


def compute_least_drop(verdict: Verdict, metric: Metric) -> float | None:
    """Return the least drop of the value that the rule fails with a probability of 1 - beta.

    That of the paired rule is planned at the flip rate of `serve-eval references power` and its
    margin, for points. None: the rule has no such figure, or it fails no drop so often.
    """
    if verdict.rule == "classic":
        return verdict.theta
    pairs = verdict.paired
    if verdict.rule != "paired" or pairs is None or not pairs.pairs or verdict.alpha is None:
        return None
    if not in_points(metric):
        return None
    beta = 0.2 if verdict.beta is None else verdict.beta
    fail = partial(compute_fail_power, margin=pairs.margin / 100.0)
    independent = max(1, round(pairs.pairs / pairs.design_effect))
    drop = find_least_drop(independent, FLIP_RATE, verdict.alpha, beta, fail)
    return None if drop is None else 100.0 * drop
