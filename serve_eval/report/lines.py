"""Format parts of a report as one line each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from serve_eval.protocol.presets import describe_options
from serve_eval.schema import (
    Acceptance,
    AcceptanceCheck,
    AnchorComparison,
    EarlyStop,
    Isolation,
    JudgeReport,
    Load,
    Metric,
    ModelPreset,
    PairedComparison,
    PathFinding,
    Plan,
    Report,
    RunCost,
    Stability,
    TaskReport,
    TaskResult,
)

LATE_S = 0.1
"""Delay of the client's event loop, in seconds, from which the report warns about the measured
times."""


def number(value: float | None) -> str:
    """Return a number with three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def plain(value: float | None) -> str:
    """Return a number in its shortest form, or a dash."""
    return "-" if value is None else f"{value:g}"


def acceptance(told: Acceptance, check: AcceptanceCheck | None) -> str:
    """Return the line about tokens per step of speculative decoding."""
    said = [
        f"acceptance length {number(told.length)} tokens per step after the first, over"
        f" {told.answers} answers"
    ]
    said.append(
        f"{told.all_steps:.3f} with first steps, {told.per_answer:.3f} as the mean of all answers"
    )
    if check is not None:
        said.append(f"reference {check.reference:.3f}, at least {check.least:.3f} ({check.test})")
    return "; ".join(said)


def describe_preset(plan: Plan) -> list[str]:
    """Return the line about the preset of a plan: its source, and the values that it offers.

    Those of the plan that tasks are asked with instead come last.
    """
    preset = plan.preset
    if preset is None or not preset.taken:
        return []
    named = [f"preset {preset.name}"] if preset.name else []
    named += [f"effort {preset.effort}"] if preset.effort else []
    return [
        f"{', '.join(named)} (table of {preset.table}; {preset.source}, read {preset.read}):"
        f" {describe_options(preset.values) or 'nothing to send'}{_name_overriding(plan, preset)}"
    ]


def _name_overriding(plan: Plan, preset: ModelPreset) -> str:
    """Return the values that a plan has in the place of those of its preset, with their tasks."""
    tasks_of: dict[str, list[str]] = {}
    for task in plan.tasks:
        if words := describe_options(_list_overriding(preset.values, task.options)):
            tasks_of.setdefault(words, []).append(task.name)
    several = len(plan.tasks) > 1
    told = [
        f"{words} ({', '.join(tasks)})" if several else words for words, tasks in tasks_of.items()
    ]
    return f"; overridden by {'; '.join(told)}" if told else ""


def _list_overriding(offered: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return the own options that differ from those offered by the same name, at any depth."""
    found: dict[str, object] = {}
    for name, value in offered.items():
        if name not in own or own[name] == value:
            continue
        there = own[name]
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            there = _list_overriding(value, there)
        if there != {}:
            found[name] = there
    return found


def describe_efforts(report: Report) -> list[str]:
    """Return a line by task about the thoughts that came of the effort of a run."""
    asked = "" if report.plan.preset is None else report.plan.preset.effort
    return [
        f"{one.task}: effort {asked}: {one.thinking} of {one.answers} answers have thoughts"
        + ("" if one.median_tokens is None else f"; {one.median_tokens:g} tokens in the median")
        + (f"; {one.refused} requests were refused" if one.refused else "")
        for one in report.effort
    ]


def describe_isolation(isolation: Isolation) -> str:
    """Return the line about the isolation in which answers were run."""
    reached = (
        f"{'with' if isolation.network else 'no'} network, writing to"
        f" {', '.join(isolation.writable) or 'nothing'}"
    )
    return f"by {isolation.name} as user {isolation.uid} on Python {isolation.python}: {reached}"


def describe_judge(judge: JudgeReport) -> str:
    """Return the line about a judge: its judgements, its failures and its requests."""
    counts = {
        "unreadable": judge.unreadable,
        "failed": judge.failed,
        "not requested": judge.missing,
    }
    lacking = "".join(f", {count} {what}" for what, count in counts.items() if count)
    traffic = judge.traffic
    tokens = f"{traffic.prompt_tokens} prompt tokens, {traffic.completion_tokens} generated tokens"
    return (
        f"judged by {judge.name}: {judge.planned} judgements{lacking}; {traffic.attempts} requests,"
        f" {tokens}"
    )


def early_stop(early: EarlyStop) -> str:
    """Return the line about the decision of the early stop, or its progress."""
    known = "the reference's scores per sample" if early.paired else "only the reference's mean"
    if early.groups is not None:
        known += f", by whole groups ({early.groups} in all)"
    if early.rounds is not None:
        known += f", in {early.rounds} rounds of all prompts"
    if early.decision is None:
        held = "; the latest look worse than the earlier ones" if early.held else ""
        return (
            f"undecided on the first {early.looked_at} of {early.planned} samples, by {known}{held}"
        )
    said = [f"{early.decision} after {early.looked_at} of {early.planned} samples, by {known}"]
    if not early.stopped:
        return f"{said[0]}, after all requests were sent"
    said.append(f"{early.saved} samples saved")
    said.append(f"estimate {number(early.estimate)} (partial)")
    if early.margin is not None:
        did = "ruled out" if early.decision == "PASS" else "proven"
        said.append(f"a drop of {early.margin:.4g} points is {did}")
    return "; ".join(said)


def describe_paired(paired: PairedComparison) -> str:
    """Return the line about the paired comparison."""
    runs = f"{paired.reference_runs} reference run{'s' if paired.reference_runs > 1 else ''}"
    own = f" of {paired.candidate_runs} runs" if paired.candidate_runs > 1 else ""
    said = [f"{paired.difference:+.3f} points{own} compared with {runs} on {paired.pairs} prompts"]
    if paired.groups is not None:
        said[0] += f" in {paired.groups} groups"
    if paired.down is not None:
        said.append(count_turned(paired))
    if paired.p is not None:
        null = ", against any build of equal accuracy" if paired.method == "permutation" else ""
        said.append(f"p {p_text(paired.p)} one-sided ({paired.method}{null})")
    if paired.lower is not None:
        excluded = (
            f"on these prompts the drop is at most {max(0.0, -paired.lower):.3f} points"
            f" ({100.0 * (1.0 - paired.alpha):g} % confidence)"
        )
        said.append(excluded)
    said.append(
        f"finding {paired.finding}" + (f" ({', '.join(paired.reasons)})" if paired.reasons else "")
    )
    return "; ".join(said)


def describe_path(found: Sequence[PathFinding]) -> Iterator[str]:
    """Yield a line for each part of the path that was expected."""
    for one in found:
        yield f"path: {one.claim} {one.state} (expected by the {one.expected_by}): {one.evidence}"


def p_text(p: float) -> str:
    """Return a p-value with four decimals, or a bound if they are all zero."""
    return f"{p:.4f}" if p >= 0.0001 else "< .0001"


def anchors_text(told: AnchorComparison, candidate_runs: int) -> str:
    """Return the line about the test of the prompts that were always right.

    Of several answers of the candidate, it counts the first ones; p is that of all.
    """
    now = "now" if candidate_runs == 1 else "now by their first answers"
    p = "" if told.p is None else f"; p {p_text(told.p)} if the endpoint is unchanged"
    return (
        f"{told.anchors} prompts were right in every reference run except the last;"
        f" {told.candidate_lost} of them are wrong {now}, {told.reference_lost} were wrong in that"
        f" last run{p}"
    )


def traffic_of(task: TaskReport) -> str:
    """Return the line about requests, retries and the times of answers."""
    traffic = task.traffic
    said = [f"{traffic.attempts} requests for {task.result.planned} samples"]
    if traffic.retries:
        causes = ", ".join(f"{cause} {count}" for cause, count in traffic.retries.items())
        said.append(f"{sum(traffic.retries.values())} of them retries after {causes}")
    if traffic.not_streamed:
        said.append(
            f"{traffic.not_streamed} retried without streaming, because the stream lost the answer"
        )
    for label, times in (
        ("latency", traffic.latency_s),
        ("first token", traffic.ttft_s),
        ("per token", traffic.tpot_s),
    ):
        if times:
            said.append(
                f"{label} " + ", ".join(f"{name} {seconds(value)}" for name, value in times.items())
            )
    if traffic.cached_tokens:
        said.append(
            f"{traffic.cached_tokens} of {traffic.prompt_tokens} prompt tokens from a prefix cache"
        )
    return "; ".join(said)


def seconds(value: float) -> str:
    """Return a time in s or ms."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def describe_cost(report: Report) -> Iterator[str]:
    """Yield lines about the tokens that a run cost, and about its GPU seconds."""
    cost = report.cost
    if cost is None:
        return
    said = [
        f"{cost.prompt_tokens:,} tokens of prompts and {cost.generated_tokens:,} generated, as the"
        " answers report"
    ]
    if cost.without_usage:
        said.append(f"{cost.without_usage:,} answers report none and are not in it")
    if cost.uncounted_attempts:
        said.append(
            f"{cost.uncounted_attempts:,} attempts without a reply that counts them may have cost"
            " more"
        )
    if cost.judge_tokens:
        said.append(f"judges {cost.judge_tokens:,} more")
    if cost.probe_tokens:
        said.append(f"probes {cost.probe_tokens:,} more")
    yield f"cost: {'; '.join(said)}"
    if cost.gpu_s is not None and cost.served_s is not None:
        yield (
            f"cost: {cost.gpu_s:,.0f} GPU seconds: {cost.gpus} GPUs for {cost.served_s:,.1f} s,"
            " from the start of the servers, or the first contact with them, to the end"
        )


def sum_up_cost(cost: RunCost | None) -> str:
    """Return in a few words what a run or a suite cost; "" if nothing is known."""
    if cost is None:
        return ""
    total = cost.prompt_tokens + cost.generated_tokens
    said = [f"{total:,} tokens ({cost.generated_tokens:,} generated)"]
    if cost.probe_tokens and not total:
        said.append(f"probes {cost.probe_tokens:,} more")
    if cost.without_usage:
        said.append(f"{cost.without_usage:,} answers report none")
    if cost.gpu_s is not None:
        said.append(f"{cost.gpu_s:,.0f} GPU seconds")
    return ", ".join(said)


def session_load(load: Load) -> str:
    """Return the line about the requests of the last session."""
    limits = load.limits
    rate = load.finished / load.wall_s if load.wall_s else 0.0
    said = [
        f"at most {load.max_in_flight} in flight{' (auto)' if limits.concurrency == 'auto' else ''}"
    ]
    said.append(f"{load.finished} results in {load.wall_s:.1f} s, {rate:.0f}/s")
    if limits.rate_limit:
        said.append(f"at most {limits.rate_limit:g} requests per second")
    if limits.requests_per_minute:
        said.append(f"at most {limits.requests_per_minute} requests per minute")
    if limits.order != "natural":
        said.append(
            "order"
            f" {limits.order}{f' (seed {load.order_seed})' if limits.order == 'random' else ''}"
        )
    if load.cancelled:
        said.append(f"{load.cancelled} requests cancelled in flight")
    if load.steps:
        numbers = " ".join(str(step.concurrency) for step in load.steps)
        said.append(f"concurrency steps {numbers} (times and reasons in report.json)")
    if load.loop_lag_s >= LATE_S:
        said.append(
            f"the client was delayed by up to {load.loop_lag_s:.2f} s, which the times include"
        )
    return f"last session: {'; '.join(said)}"


def count_lost(result: TaskResult) -> list[str]:
    """Return how many samples were repaired, and how many of them were lost with their server."""
    of_them = f" ({result.restarted} of them lost with their server)" if result.restarted else ""
    return [f"{result.doubted} repaired{of_them}"]


POINTS = 100.0
"""Scale of a metric whose values are points out of 100."""
MOST_SHOWN = 5
"""Number of repeats from which pass@k is shown for powers of two and for all repeats only."""
SHOWN_WIDTH = 0.005
"""Width of the bounds of pass@k, in points, from which they are shown."""


def describe_repeats(result: TaskResult) -> str:
    """Return avg@k with its standard errors, pass@k, the vote, and the answers that are lacking.

    "avg@16 = 78.96 ± 5.1 (SE by question; ± .30 over runs), pass@16 = 93.3, maj@16 = 86.7,
    unanswered 2.1 %, cut 4 of 480". Bounds in brackets have all missing answers wrong, and right.
    The result must have repeats.
    """
    told = result.stability
    assert told is not None
    said = [_describe_value(result, told)]
    last = str(told.repeats)
    if last in told.pass_at:
        low, high = told.pass_bounds.get(last, (told.pass_at[last],) * 2)
        between = f" ({low:.1f} to {high:.1f})" if high - low >= SHOWN_WIDTH else ""
        said.append(f"pass@{last} = {told.pass_at[last]:.1f}{between}")
    if told.majority is not None:
        of = ""
        if told.voted is not None and told.asked is not None:
            few = told.voted * told.repeats < told.asked
            of = f" of {told.voted} prompts" if few else ""
        said.append(f"maj@{last} = {_number(told.majority, result.metric, 1)}{of}")
    asked = max(1, result.planned - result.spared)
    said.append(f"unanswered {_percent(result.unanswered / asked)}")
    said.append(f"cut {result.cut_answers or result.truncated:,} of {asked:,}")
    return ", ".join(said)


def describe_agreement(told: Stability) -> str:
    """Return how far the repeats agree, pass@k of fewer answers, and the ties of the vote."""
    said = [f"a run's value varies by {told.sd:.2f} points (sd)"]
    if told.flip_rate is not None and told.mixed is not None:
        said.append(
            f"two repeats disagree on {told.flip_rate:.1%} of the prompts; {told.mixed:.1%} were"
            " right in some repeats and wrong in others"
        )
    if told.cochran_q is not None and told.p is not None:
        said.append(f"Cochran's Q {told.cochran_q:.2f} ({told.df} df, p {told.p:.3f})")
    if told.pass_at:
        said.append(_passes(told))
    if told.tied:
        said.append(
            f"{told.tied} of {told.voted} prompts tied: the mean of the leading answers counts"
        )
    return "; ".join(said)


def _describe_value(result: TaskResult, told: Stability) -> str:
    """Return the mean of the repeats with its two standard errors, or another value with its sd."""
    shown = "-" if result.value is None else _number(result.value, result.metric, 2)
    if result.failed and result.bounds is not None:
        low, high = (_number(end, result.metric, 1) for end in result.bounds)
        shown += f" ({low} to {high})"
    if told.se is None or told.se_runs is None:
        return f"value of {told.repeats} repeats = {shown} (sd of one: {_error(told.sd)})"
    return (
        f"avg@{told.repeats} = {shown} ± {_error(told.se)} (SE by question;"
        f" ± {_error(told.se_runs)} over runs)"
    )


def _number(value: float, metric: Metric, decimals: int) -> str:
    """Return a value in points with some decimals, and another one with four digits."""
    return f"{value:.{decimals}f}" if metric.scale == POINTS else f"{value:.4g}"


def _error(value: float) -> str:
    """Return a standard error with two digits and at most two decimals, without a leading zero."""
    if value <= 0.0:
        return "0"
    decimals = min(2, max(0, 1 - math.floor(math.log10(value))))
    return f"{value:.{decimals}f}".removeprefix("0") or "0"


def _percent(share: float) -> str:
    return "0 %" if share == 0.0 else f"{100.0 * share:.1f} %"


def _passes(told: Stability) -> str:
    """Return pass@k of some k, with what the missing answers allow."""
    shown = []
    for k, value in told.pass_at.items():
        if told.repeats > MOST_SHOWN and int(k) != told.repeats and int(k).bit_count() != 1:
            continue
        low, high = told.pass_bounds.get(k, (value, value))
        between = f" ({low:.2f} to {high:.2f})" if high - low >= SHOWN_WIDTH else ""
        shown.append(f"pass@{k} {value:.2f}{between}")
    return ", ".join(shown) + _coverage(told)


def _coverage(told: Stability) -> str:
    """Return how many answers pass@k is of, if any are missing."""
    if told.answered == told.asked:
        return ""
    return (
        f" from {told.answered} of {told.asked} answers (in brackets: with all missing ones wrong,"
        " and right)"
    )


def count_turned(paired: PairedComparison) -> str:
    """Return how many answers turned wrong or right, and among how many with several to a prompt.

    A file of an earlier version does not say among how many: its counts are of the first answers.
    """
    said = f"{paired.down} turned wrong, {paired.up} turned right"
    runs = paired.reference_runs, paired.candidate_runs
    if max(runs) == 1:
        return said
    if paired.answer_pairs is None:
        return f"{said}, of the first answers"
    of = f"{said} of {paired.answer_pairs} pairs of answers"
    least = "the first" if min(runs) == 1 else f"the first {min(runs)}"
    return of if runs[0] == runs[1] else f"{of}, {least} of {max(runs)} repeats"
