"""Make the document of a run: a conclusion for each task, with what is known of all.

The details are what `-v` and the page show, also the engines' counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Self

from serve_eval.client.engine_metrics import add
from serve_eval.evaluation.capabilities.sampling import describe_defaults
from serve_eval.evaluation.deployment import describe
from serve_eval.evaluation.run_session import describe_old_answers
from serve_eval.evidence.path_facts import ROLES
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.report import lines
from serve_eval.report.attribution import COLUMNS, list_workers, sentences
from serve_eval.report.ci_result import CiSuite, OneLine, write_line
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.lines import number, plain
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, TextLines
from serve_eval.report.run.conclusions import (
    list_cases,
    make_conclusion,
    make_lines,
    make_statements,
    name_old,
    tabulate_tasks,
)
from serve_eval.report.run.page_blocks import list_page_blocks
from serve_eval.report.summary.figures import SummaryTask, count, summarise_tasks
from serve_eval.report.summary.rows import Row, explain_taking, next_steps, rows_of
from serve_eval.schema import (
    MEAN,
    REHEARSED,
    ArrivalLateness,
    Attribution,
    EngineCounts,
    EngineReport,
    FailureKind,
    Load,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
)
from serve_eval.stats.intervals import failure_rate_upper
from serve_eval.storage.file_names import REPORT_FILE
from serve_eval.verdicts.references import describe_taken, spec_text


def make_run_document(
    report: Report,
    out_dir: Path,
    causes: Mapping[str, str] | None = None,
    places: Sequence[str] = (),
    *,
    include_path: Sequence[str] = (),
    prepared: Sequence[PreparedTask] = (),
) -> Document:
    """Return the document of a run.

    `causes` has the likeliest cause by task, and `places` say where score was lost, each behind
    the name of its task, as far as a diagnosis knows. The page prepares tasks again that are not
    `prepared`.
    """
    old = describe_old_answers(report.warnings)
    tasks = summarise_tasks(report, out_dir)
    said = make_lines(report, causes)
    cases = name_old(list_cases(report, causes), old)
    return Document(
        "run",
        f"serve-eval run of {report.plan.model} at {report.endpoint.base_url}",
        names_endpoint=False,
        header=report,
        conclusions=[
            _conclude(task, one, line, causes or {}, places)
            for task, one, line in zip(tasks, report.tasks, said, strict=True)
        ],
        overview=tabulate_tasks(tasks),
        model=report.plan.model or "",
        endpoint=report.endpoint.base_url,
        notice=old,
        statements=[*make_statements(_describe_run(report, out_dir)), _describe_flaky(report)],
        blocks=list_detail_blocks(report),
        warnings=report.warnings,
        commands=list(next_steps(report, out_dir)),
        suites=[
            CiSuite(
                f"serve-eval run {report.plan.model}",
                cases,
                host=report.endpoint.base_url,
                seconds=report.wall_s,
            )
        ],
        result=out_dir / REPORT_FILE,
        make_page_blocks=lambda: list_page_blocks(
            report, out_dir, include_path=include_path, prepared=prepared
        ),
    )


def _conclude(
    task: SummaryTask,
    one: TaskReport,
    line: OneLine,
    causes: Mapping[str, str],
    places: Sequence[str],
) -> Conclusion:
    name = one.result.task
    rows = list(rows_of(task))
    if name in causes:
        rows.append(("likely", causes[name]))
    here = [place for place in places if place.startswith(f"{name}: ")]
    rows += [("where", place.removeprefix(f"{name}: ")) for place in here]
    if one.attribution is not None:
        rows += [("workers", sentence) for sentence in sentences(one.attribution)]
    return make_conclusion(task, line, rows)


def _describe_run(report: Report, out_dir: Path) -> Iterator[Row]:
    """Yield the rows about the run as a whole."""
    for line in lines.describe_path(report.path):
        yield "path", line.removeprefix("path: ")
    if report.plan.integration_test:
        yield "note", "INTEGRATION TEST: ONE SAMPLE PER TASK, NOTHING WAS JUDGED"
    if cost := lines.sum_up_cost(report.cost):
        yield "cost", cost
    for load in report.loads[-1:]:
        yield "speed", _describe_load(load, report)
        if load.lateness is not None:
            yield "pace", describe_lateness(load.lateness)
    for line in lines.describe_preset(report.plan):
        yield "preset", line.removeprefix("preset ")
    spec = spec_text(report.plan.accuracy_spec)
    where = report.endpoint.base_url or "no request was sent"
    yield "run", f"{out_dir}: {report.plan.model}, {spec}, {where}"
    yield from (("note", line) for line in explain_taking(report))


def _describe_flaky(report: Report) -> Statement:
    """Return what was flaky, always, since silence says nothing."""
    retries = sum(n for task in report.tasks for n in task.traffic.retries.values())
    failed = sum(task.result.failed for task in report.tasks)
    again = sum(task.result.doubted for task in report.tasks)
    told = [
        f"{count(retries, 'request')} repeated after a failure",
        f"{count(failed, 'sample')} without an answer",
        f"{count(again, 'sample')} repaired",
    ]
    for task in report.tasks:
        if (stability := task.result.stability) is not None and stability.mixed is not None:
            mixed = round(stability.mixed * stability.prompts)
            told.append(
                f"{task.result.task}: {count(mixed, 'prompt')} of {stability.prompts:,} right in"
                " some repeats and wrong in others"
            )
    return Statement("flaky", "; ".join(told), depth=Depth.MORE, keep=True)


def describe_lateness(late: ArrivalLateness) -> str:
    """Return how late requests started after their recorded times."""
    worst = ", ".join(
        f"{lines.seconds(value)} ({name})"
        for name, value in (("median", late.median_s), ("p99", late.p99_s), ("worst", late.worst_s))
    )
    return (
        f"{late.requests:,} requests at their recorded times, over {lines.seconds(late.span_s)};"
        f" started late by {worst}"
    )


def _describe_load(load: Load, report: Report) -> str:
    rate = load.finished / load.wall_s if load.wall_s else 0.0
    shown = f"{rate:,.0f}" if rate >= 100.0 else f"{rate:.3g}"
    told = [
        f"{load.finished:,} answers in {load.wall_s:.1f} s, {shown}/s, at most"
        f" {load.max_in_flight} in flight"
    ]
    if len(report.tasks) == 1 and (times := report.tasks[0].traffic.latency_s):
        shown = ", ".join(f"{name} {lines.seconds(value)}" for name, value in times.items())
        told.append(f"latency {shown}")
    return "; ".join(told)


class TellingReport(Report):
    """A report whose text is the line of its worst task, which ends with the run folder."""

    __slots__ = ("_folder",)
    _folder: Path

    @classmethod
    def of(cls, report: Report, folder: Path) -> Self:
        """Return the same report with its folder."""
        telling = cls(**{one.name: getattr(report, one.name) for one in fields(report)})
        object.__setattr__(telling, "_folder", folder)
        return telling

    def __str__(self) -> str:
        folder = getattr(self, "_folder", Path())
        if not self.tasks:
            return "no task was asked"
        line = make_run_document(self, folder).make_line()
        place = str(folder) if folder.name else ""
        return write_line(replace(line, place=place, notice=REHEARSED if self.rehearsal else ""))


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
