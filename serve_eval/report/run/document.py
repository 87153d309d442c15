"""Make the document of a run: a conclusion for each task, with what is known of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Self

from serve_eval.evaluation.run_session import describe_old_answers
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.report import lines
from serve_eval.report.attribution import sentences
from serve_eval.report.ci_result import CiSuite, OneLine, write_line
from serve_eval.report.document import Conclusion, Depth, Document, Statement
from serve_eval.report.run.conclusions import (
    list_cases,
    make_conclusion,
    make_lines,
    make_statements,
    name_old,
    tabulate_tasks,
)
from serve_eval.report.run.details import list_detail_blocks
from serve_eval.report.run.page_blocks import list_page_blocks
from serve_eval.report.summary.figures import SummaryTask, count, summarise_tasks
from serve_eval.report.summary.rows import Row, explain_taking, next_steps, rows_of
from serve_eval.schema import REHEARSED, ArrivalLateness, Load, Report, TaskReport
from serve_eval.storage.file_names import REPORT_FILE
from serve_eval.verdicts.references import spec_text


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
    if cost := lines.sum_up_cost(report):
        yield "cost", cost
    for load in report.loads[-1:]:
        yield "speed", _describe_load(load, report)
        if load.lateness is not None:
            yield "pace", _describe_lateness(load.lateness)
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


def _describe_lateness(late: ArrivalLateness) -> str:
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
