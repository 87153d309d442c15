"""List the details of a run that `-v` and the page show, also its engines' counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from serve_eval.client.engine_metrics import add
from serve_eval.evaluation.capabilities.sampling import describe_defaults
from serve_eval.evaluation.deployment import describe
from serve_eval.evidence.path_facts import ROLES
from serve_eval.report import lines
from serve_eval.report.attribution import COLUMNS, list_workers
from serve_eval.report.document import Block
from serve_eval.report.lines import number, plain
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, TextLines
from serve_eval.schema import (
    MEAN,
    Attribution,
    EngineCounts,
    EngineReport,
    FailureKind,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
)
from serve_eval.stats.intervals import failure_rate_upper
from serve_eval.verdicts.references import describe_taken, spec_text

_COLUMNS = (
    "task", "n", "failed", "truncated", "unparsed", "evaluated", "reference", "threshold", "theta",
    "alpha", "beta", "sigma",
)  # fmt: skip


def list_detail_blocks(report: Report) -> list[Block]:
    """Return every figure of the tests, the workers, and the lines about tasks and servers."""
    rows = [[DataCell(text) for text in _list_figures(task)] for task in report.tasks]
    columns = [DataColumn(name, number=i > 0) for i, name in enumerate(_COLUMNS)]
    blocks = [
        Block(show_workers(task.attribution, task.result.task))
        for task in report.tasks
        if task.attribution is not None
    ]
    blocks.append(Block(DataTable("Figures of the test", columns=columns, rows=rows)))
    for task in report.tasks:
        told = TextLines(f"Details: {task.result.task}", [*explain(task)], closed=True)
        blocks.append(Block(told))
    about = TextLines("Endpoint and load", [*_describe_rest(report)], closed=True)
    return [*blocks, Block(about)]


def show_workers(told: Attribution, task: str) -> DataTable:
    """Return the table of bad answers by worker."""
    rows = [
        [DataCell(cell, state="fail" if accused else "none") for cell in cells]
        for cells, accused in list_workers(told)
    ]
    columns = [DataColumn(name, number=i > 2) for i, name in enumerate(COLUMNS)]
    return DataTable(f"{task}: workers", columns=columns, rows=rows)


def _describe_rest(report: Report) -> Iterator[str]:
    """Yield lines about the servers, the load and what the endpoint adds to requests."""
    for kind, what in describe(report.endpoint.info).items():
        yield f"{kind}: {what}"
    yield from (lines.session_load(load) for load in report.loads[-1:])
    yield from lines.describe_cost(report)
    yield from lines.describe_efforts(report)
    yield from describe_engines(report)
    for line in describe_defaults(report.sampling_defaults):
        yield f"sampling defaults: {line}"


def _list_figures(task: TaskReport) -> list[str]:
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
    ]


def _value(task: TaskReport) -> str:
    """Return the value, its range if answers are missing, or an estimate by the samples asked."""
    if task.verdict.estimated:
        return f"~{number(task.verdict.estimate)}"
    if task.result.failed and task.verdict.bounds is not None:
        return f"{task.verdict.bounds[0]:.3f}..{task.verdict.bounds[1]:.3f}"
    return number(task.verdict.evaluated)


def explain(task: TaskReport) -> Iterator[str]:
    """Yield every figure of the test, the protocol and the times that the summary leaves out."""
    yield from _losses(task.result)
    yield lines.traffic_of(task)
    yield from _figures(task)
    yield from _basis(task)
    yield from _decision(task.verdict)


def _losses(result: TaskResult) -> Iterator[str]:
    """Yield lines about the samples without a score."""
    if result.failed and result.value is not None:
        yield f"{result.value:.3f} over the {result.scored} of {result.planned} scored samples"
    if result.failures:
        yield _failures(result)


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
        yield lines.describe_repeats(result)
        yield f"repeats: {lines.describe_agreement(result.stability)}"
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
    """Yield lines about the tests behind the verdict."""
    if verdict.early is not None:
        yield f"early stop: {lines.early_stop(verdict.early)}"
    if verdict.paired is not None:
        yield f"paired: {lines.describe_paired(verdict.paired)}"
        if verdict.paired.anchors is not None:
            runs = verdict.paired.candidate_runs
            yield f"anchors: {lines.anchors_text(verdict.paired.anchors, runs)}"


GENERATION = ROLES["generation_servers"]


def describe_engines(report: Report) -> list[str]:
    """Return a line per role of the servers whose counts are known and say something."""
    if report.engine is None:
        return []
    by_role: dict[str | None, list[EngineCounts]] = {}
    for one in report.engine.servers:
        if one.counts is not None:
            by_role.setdefault(one.role, []).append(one.counts)
    told = any(task.traffic.acceptance is not None for task in report.tasks)
    found = []
    for role, ones in by_role.items():
        who = "engine" if len(ones) == 1 else f"{len(ones)} engines"
        if role in ROLES.values():
            who += f" ({role})"
        if said := "; ".join(_count_engine(role, add(ones), acceptance=not told)):
            found.append(f"{who}: {said}{_count_companions(report.engine)}")
    return found


def _count_companions(engine: EngineReport) -> str:
    others = engine.companions
    return f"; includes up to {others:,} requests of other runs of this command" if others else ""


def _count_engine(role: str | None, counts: EngineCounts, *, acceptance: bool) -> Iterator[str]:
    """Yield the known figures; an acceptance length only if the answers report none."""
    if counts.prompt_tokens is not None:
        moved = counts.moved_tokens
        more = (
            f", {moved:,} of them by KV transfer"
            if moved or (moved == 0 and role == GENERATION)
            else ""
        )
        yield f"{counts.prompt_tokens:,} prompt tokens{more}"
    if counts.generated_tokens is not None:
        yield f"{counts.generated_tokens:,} generated tokens"
    if counts.preemptions is not None:
        yield f"{counts.preemptions:,} preemptions"
    if counts.prefix_cache_hits is not None:
        asked = counts.prefix_cache_queries
        of = "" if asked is None else f" of {asked:,}"
        if asked != 0:
            yield f"prefix cache hit {counts.prefix_cache_hits:,}{of} tokens"
    if acceptance and (length := counts.acceptance_length) is not None:
        yield (
            f"acceptance length {length:.2f} by its counters"
            f" (1 + {counts.accepted_tokens:,} accepted tokens / {counts.drafts:,} drafts)"
        )
