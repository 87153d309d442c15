"""The report for people: one table of verdicts, the reasons below it, where the run folder is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_eval.evaluation.endpoint.deployment import told
from serve_eval.report.attribution import sentences, table
from serve_eval.report.text import clean
from serve_eval.schema import (
    MEAN,
    Acceptance,
    AcceptanceCheck,
    AnchorComparison,
    Attribution,
    EarlyStop,
    FailureKind,
    Isolation,
    JudgeReport,
    Load,
    PairedComparison,
    Report,
    Stability,
    TaskReport,
    VerdictOutcome,
)
from serve_eval.stats.availability import failure_rate_upper
from serve_eval.verdicts.references import spec_text

LATE_S = 0.1
"""Lateness of our own event loop from which on the measured times are not trusted without a word."""

SHOWN_ERRORS = 3
"""Different errors of a task's scorer that are shown."""
MENDED = (
    "when the scorer is mended: serve-eval run --resume RUN scores these answers, and asks nothing for them; "
    "--scorer-timeout gives it more time"
)

_STYLES = {
    VerdictOutcome.PASS: "bold green",
    VerdictOutcome.FAIL: "bold red",
    VerdictOutcome.ERROR: "bold red",
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
    """Prints the verdict table and what explains it. On a narrow terminal the table has a column per task."""
    spec = spec_text(report.plan.accuracy_spec)
    say(console, f"model {report.plan.model}, specification {spec}, {report.endpoint.base_url or 'endpoint not asked'}")
    for kind, what in told(report.endpoint.info).items():
        say(console, f"{kind}: {what}")
    console.print(*fitted(_COLUMNS, list(map(_cells, report.tasks)), console.width), sep="\n\n")
    for task in report.tasks:
        _explain(task, console)
    for load in report.loads[-1:]:
        say(console, _engine(load))
    for warning in report.warnings:
        say(console, f"warning: {warning}")
    if report.plan.integration_test:
        say(console, "INTEGRATION TEST: ONE SAMPLE PER TASK, NOTHING WAS JUDGED")
    say(console, f"run folder: {out_dir}")
    if any(task.verdict.outcome in RED for task in report.tasks):
        say(console, diagnose_hint(out_dir))


def diagnose_hint(out_dir: Path) -> str:
    """Where a reader of a red verdict goes on."""
    return f"what may be the cause: serve-eval diagnose {shlex.quote(str(out_dir))}"


def fitted(names: Sequence[str], cells: Sequence[Sequence[Text]], width: int) -> list[Table]:
    """One table with a line for each row of `cells`, or as many as it takes with a column for each: no figure is cut
    to fit `width` characters."""
    header = [Text(name, style="bold") for name in names]
    if sum(max(map(len, column)) + 2 for column in zip(header, *cells, strict=True)) <= width:
        return [_table([header, *cells])]
    label = max(map(len, names)) + 2
    columns = max(1, (width - label) // (2 + max((len(cell) for row in cells for cell in row), default=1)))
    chunks = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    return [_table([list(row) for row in zip(header, *chunk, strict=True)], turned=True) for chunk in chunks]


def _table(rows: Sequence[Sequence[Text]], *, turned: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for i in range(len(rows[0])):
        table.add_column(justify="left" if i == 0 or (i == len(rows[0]) - 1 and not turned) else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


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
        _number(verdict.reference),
        _number(verdict.threshold),
        _number(verdict.theta),
        _plain(verdict.alpha),
        _plain(verdict.beta),
        _plain(verdict.sigma),
        verdict.outcome.value,
    ]


def _value(task: TaskReport) -> str:
    """The value; where answers are missing, the range that they leave it; an estimate after an early stop."""
    early = task.verdict.early
    if early is not None and early.stopped:
        return f"~{_number(early.estimate)}"
    if task.result.failed and task.verdict.bounds is not None:
        return f"{task.verdict.bounds[0]:.3f}..{task.verdict.bounds[1]:.3f}"
    return _number(task.verdict.evaluated)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _explain(task: TaskReport, console: Console) -> None:
    result, verdict = task.result, task.verdict
    name = result.task
    if result.failed and result.value is not None:
        say(
            console, f"{name}: {result.value:.3f} over the {result.scored} of {result.planned} samples that were scored"
        )
    if result.failures:
        kinds = ", ".join(f"{kind} {count}" for kind, count in result.failures.items())
        unscored = sum(result.failures.get(kind, 0) for kind in (FailureKind.JUDGE_ERROR, FailureKind.SCORER_ERROR))
        bound, lost = "", result.failed - unscored
        if lost and not result.spared:
            most = failure_rate_upper(lost, result.planned)
            bound = f"; at 95 % confidence at most {most:.2%} of such requests fail"
        say(console, f"{name}: failures: {kinds}{bound}")
    for error in result.scorer_errors[:SHOWN_ERRORS]:
        say(console, f"{name}: {FailureKind.SCORER_ERROR}: {error.line}")
    if len(result.scorer_errors) > SHOWN_ERRORS:
        say(console, f"{name}: {len(result.scorer_errors) - SHOWN_ERRORS} more of the scorer's errors: report.json")
    if result.scorer_errors:
        say(console, f"{name}: {MENDED}")
    for line in result.hook_errors:
        say(console, f"{name}: left out of the figures: {line}")
    say(console, f"{name}: {_traffic(task)}")
    if task.traffic.acceptance is not None:
        say(console, f"{name}: {_acceptance(task.traffic.acceptance, verdict.acceptance)}")
    if result.stability is not None:
        say(console, f"{name}: {_stability(result.stability)}")
    if result.aggregation != MEAN.name:
        say(console, f"{name}: the value is the {result.aggregation}")
    if beside := {**result.parts, **result.secondary}:
        say(console, f"{name}: {', '.join(f'{part} {value:.3f}' for part, value in beside.items())}")
    if result.modes:
        say(console, f"{name}: without full marks: {', '.join(f'{mode} {n}' for mode, n in result.modes.items())}")
    if verdict.num_samples is not None and verdict.threshold is not None and verdict.num_samples != result.planned:
        say(console, f"{name}: the test uses the registered n = {verdict.num_samples}; {result.planned} were asked")
    if task.reference is not None:
        found = task.reference
        source = f", {found.source}" if found.source else ""
        say(console, f"{name}: reference: {Path(found.file).name}:{found.line}, {spec_text(found.spec)}{source}")
        say(console, f"{name}: protocol: {verdict.protocol}")
    for isolation in task.isolations:
        say(console, f"{name}: answers were run {_isolated(isolation)}")
    for judge in task.judges:
        say(console, f"{name}: {_judged(judge)}")
    if verdict.early is not None:
        say(console, f"{name}: early stop: {_early(verdict.early)}")
    if verdict.paired is not None:
        say(console, f"{name}: paired: {paired_text(verdict.paired)}")
        if verdict.paired.anchors is not None:
            say(console, f"{name}: anchors: {anchors_text(verdict.paired.anchors)}")
    for reason in verdict.reasons:
        say(console, f"{name}: {reason}")
    for warning in verdict.warnings:
        say(console, f"{name}: warning: {warning}")
    if task.attribution is not None:
        attribution(task.attribution, name, console)


def attribution(told: Attribution, name: str, console: Console) -> None:
    """Prints who of several workers gave the bad answers."""
    for sentence in sentences(told):
        say(console, f"{name}: {sentence}")
    if (rows := table(told)) is not None:
        console.print(rows)


def _acceptance(told: Acceptance, check: AcceptanceCheck | None) -> str:
    """Tokens per step of speculative decoding, in a line."""
    said = [f"acceptance length {_number(told.length)} tokens per step after the first, over {told.answers} answers"]
    said.append(f"{told.all_steps:.3f} with first steps, {told.per_answer:.3f} as a mean of the answers' own")
    if check is not None:
        said.append(f"reference {check.reference:.3f}, at least {check.least:.3f} ({check.test})")
    return "; ".join(said)


def _stability(told: Stability) -> str:
    """How repeats agree, in a line."""
    said = [f"{told.repeats} repeats of {told.prompts} prompts: a run's value varies by {told.sd:.3f} points (sd)"]
    if told.flip_rate is not None and told.mixed is not None:
        said.append(f"two repeats disagree on {told.flip_rate:.1%} of them, {told.mixed:.1%} were both right and wrong")
    if told.cochran_q is not None and told.p is not None:
        said.append(f"Cochran's Q {told.cochran_q:.2f} ({told.df} df, p {told.p:.3f})")
    if told.pass_at:
        said.append(", ".join(f"pass@{k} {value:.2f}" for k, value in told.pass_at.items()))
    if told.majority is not None:
        said.append(f"by majority {told.majority:.3f}")
    return "; ".join(said)


def _isolated(isolation: Isolation) -> str:
    """What kept them from this machine, in a line."""
    reached = (
        f"{'with' if isolation.network else 'no'} network, writing to {', '.join(isolation.writable) or 'nothing'}"
    )
    return f"by {isolation.name} as user {isolation.uid} on Python {isolation.python}: {reached}"


def _judged(judge: JudgeReport) -> str:
    """What a judge was asked, what came of it, and what it took."""
    counts = {"unreadable": judge.unreadable, "failed": judge.failed, "not asked for": judge.missing}
    lacking = "".join(f", {count} {what}" for what, count in counts.items() if count)
    traffic = judge.traffic
    tokens = f"{traffic.prompt_tokens} prompt tokens and {traffic.completion_tokens} of answers"
    return f"judged by {judge.name}: {judge.planned} judgements{lacking}; {traffic.attempts} requests, {tokens}"


def _early(early: EarlyStop) -> str:
    """How far it came, in a line."""
    known = "the reference's scores per sample" if early.paired else "the reference's mean alone"
    if early.decision is None:
        held = ", of which the latest look worse than those before" if early.held else ""
        return f"undecided on the first {early.looked_at} of {early.planned} samples, by {known}{held}"
    said = [f"{early.decision} after {early.looked_at} of {early.planned} samples, by {known}"]
    if not early.stopped:
        return f"{said[0]}, when all had been asked"
    said.append(f"{early.saved} samples saved")
    said.append(f"estimate {_number(early.estimate)} (partial)")
    if early.margin is not None:
        did = "excluded" if early.decision == "PASS" else "shown"
        said.append(f"a drop of {early.margin:.4g} points {did}")
    return "; ".join(said)


def paired_text(paired: PairedComparison) -> str:
    """The comparison in a line."""
    runs = f"{paired.reference_runs} reference run{'s' if paired.reference_runs > 1 else ''}"
    own = f" of {paired.candidate_runs} runs" if paired.candidate_runs > 1 else ""
    said = [f"{paired.difference:+.3f} points{own} against {runs} on {paired.pairs} prompts"]
    if paired.down is not None:
        said.append(f"{paired.down} turned wrong, {paired.up} turned right")
    if paired.p is not None:
        said.append(f"p {p_text(paired.p)} ({paired.method})")
    if paired.lower is not None:
        excluded = (
            f"a drop larger than {max(0.0, -paired.lower):.3f} points is excluded at {100.0 * (1.0 - paired.alpha):g}%"
        )
        said.append(excluded)
    said.append(f"finding {paired.finding}" + (f" ({', '.join(paired.reasons)})" if paired.reasons else ""))
    return "; ".join(said)


def p_text(p: float) -> str:
    """A p-value with four digits, as a bound where these are all zeros."""
    return f"{p:.4f}" if p >= 0.0001 else "< .0001"


def anchors_text(told: AnchorComparison) -> str:
    """The test of the prompts that were always right, in a line."""
    p = "" if told.p is None else f"; p {p_text(told.p)} if it is the same endpoint"
    return (
        f"{told.anchors} prompts were right in every reference run but the last; {told.candidate_lost} of them are "
        f"wrong now, {told.reference_lost} were in that last run{p}"
    )


def _traffic(task: TaskReport) -> str:
    """Requests with their retries, and the times of those that were answered."""
    traffic = task.traffic
    said = [f"{traffic.attempts} requests for {task.result.planned} samples"]
    if traffic.retries:
        causes = ", ".join(f"{cause} {count}" for cause, count in traffic.retries.items())
        said.append(f"{sum(traffic.retries.values())} of them retries after {causes}")
    if traffic.not_streamed:
        said.append(f"{traffic.not_streamed} asked again without streaming, since the stream lost the answer")
    for label, times in (
        ("latency", traffic.latency_s),
        ("first token", traffic.ttft_s),
        ("per token", traffic.tpot_s),
    ):
        if times:
            said.append(f"{label} " + ", ".join(f"{name} {seconds(value)}" for name, value in times.items()))
    if traffic.cached_tokens:
        said.append(f"{traffic.cached_tokens} of {traffic.prompt_tokens} prompt tokens out of a prefix cache")
    return "; ".join(said)


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _engine(load: Load) -> str:
    """How the requests of the last session went out."""
    limits = load.limits
    rate = load.finished / load.wall_s if load.wall_s else 0.0
    said = [f"at most {load.max_in_flight} in flight{' (auto)' if limits.concurrency == 'auto' else ''}"]
    said.append(f"{load.finished} results in {load.wall_s:.1f} s, {rate:.0f}/s")
    if limits.rate_limit:
        said.append(f"at most {limits.rate_limit:g} requests per second")
    if limits.order != "natural":
        said.append(f"order {limits.order}{f' (seed {load.order_seed})' if limits.order == 'random' else ''}")
    if load.cancelled:
        said.append(f"{load.cancelled} requests cancelled in flight")
    if load.steps:
        numbers = " ".join(str(step.concurrency) for step in load.steps)
        said.append(f"concurrency went {numbers} (report.json says when and why)")
    if load.loop_lag_s >= LATE_S:
        said.append(f"the client itself was late by up to {load.loop_lag_s:.2f} s, which the times include")
    return f"last session: {'; '.join(said)}"


def say(console: Console, text: str) -> None:
    """Prints a line, safe for a terminal."""
    console.print(Text(clean(text)), soft_wrap=True)
