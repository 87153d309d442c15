"""Make the document of a suite: a conclusion for each run and task, the worst first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evaluation.run_session import describe_old_answers, find_last_answer, write_notice
from serve_eval.plan.applicable_reference import write_taking
from serve_eval.plan.command_line import HOW_TO_TAKE, write_larger
from serve_eval.report.ci_result import CiCase, CiSuite, OneLine, lead
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.lines import sum_up_cost
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, TextLines
from serve_eval.report.results_table import ResultsTable, write_text
from serve_eval.report.results_table.formats import list_table_lines
from serve_eval.report.summary import Row
from serve_eval.report.summary.figures import count
from serve_eval.report.task_line import list_other
from serve_eval.schema import SuiteReport, SuiteRow, VerdictOutcome, WaiverState, WaiverUse
from serve_eval.series.result_table import OUTSIDE, find_suite_results
from serve_eval.shell_words import quote_path
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.run_folder import read_plan
from serve_eval.storage.story_files import SUITE
from serve_eval.verdicts.many_tests import GATES, say_in_words
from serve_eval.verdicts.pairing import UNPAIRED
from serve_eval.workflows.suite.page_blocks import find_state, list_page_blocks
from serve_eval.workflows.suite.rows import (
    choose_row_state,
    describe_changes,
    describe_counts,
    describe_figures,
    describe_verdict,
    find_worth_a_look,
    list_remarks,
    list_texts,
    rank,
)

TABLE_WIDTH = 100
"""Characters of a line of the table of deployments by tasks."""
_TESTED = ("p", "p holm", "q")
_SPARE = ("fails", "q", "", "p", "95 %", "reference")
"""Columns that a narrow terminal leaves out, in this order; "" stands for the attributes."""
_FEW = "detects only drops"
"""Is in the warning of a rule that misses large drops."""


def make_document(
    report: SuiteReport,
    out_dir: Path,
    causes: Mapping[str, str] | None = None,
    *,
    again: str = "",
    stored: bool = True,
) -> Document:
    """Return the document of a suite.

    `causes` has likely causes by RUN/TASK, as far as known, and `again` is the command that tries
    runs again that ended early. Not `stored`: the runs were judged again, so that their own
    reports say something else.
    """
    rows = sorted(report.rows, key=rank)
    lines = _make_lines(report, rows, causes or {})
    notices = describe_each_old_run(report, out_dir) if stored else {}
    old = describe_old_runs(report, out_dir) if stored else ""
    table = find_suite_results(out_dir) if stored else None
    found = dict(zip(((row.run, row.task) for row in rows), lines, strict=True))
    return Document(
        "suite",
        f"suite {report.name}: {count(len(report.runs), 'run')}, {count(len(report.rows), 'task')}",
        report,
        outcome=report.verdict,
        counted_as=f"suite {report.name}: {describe_counts(report)}",
        conclusions=[_conclude(report, row, line) for row, line in zip(rows, lines, strict=True)],
        overview=tabulate(rows),
        notice=old,
        statements=[
            *_list_statements(report, out_dir, rows, old=old),
            *_list_outside(table),
        ],
        warnings=list(list_run_warnings(report)),
        commands=list(_list_next(report, out_dir, rows, again)),
        suites=[
            CiSuite(
                run.name,
                [
                    _describe_case(
                        row,
                        replace(found[row.run, row.task], notice=notices.get(run.name, "")),
                    )
                    for row in report.rows
                    if row.run == run.name
                ],
            )
            for run in report.runs
        ],
        blocks=[] if table is None else [_show_table(table)],
        result=out_dir / SUITE.result if stored else None,
        make_page_blocks=lambda: list_page_blocks(report, out_dir),
        folds_overview=True,
        line=lines[0] if lines else None,
        summary_lines=[] if table is None else list(list_table_lines(table)),
    )


def _list_outside(table: ResultsTable | None) -> Iterator[Statement]:
    """Yield the note about runs that stand outside of the correction of the suite."""
    for note in () if table is None else table.list_notes():
        if OUTSIDE in note:
            yield Statement("note", note)


def _show_table(table: ResultsTable) -> Block:
    """Return the table of deployments by tasks, as `serve-eval runs export` prints it."""
    lines = write_text(table, TABLE_WIDTH, reasons=False).splitlines()
    return Block(TextLines("Deployments by tasks", lines, preformatted=True))


_NEED_NO_CAUSE = (
    VerdictOutcome.PASS,
    VerdictOutcome.PASS_BY_IDENTITY,
    VerdictOutcome.NOT_JUDGED,
)


def _make_lines(
    report: SuiteReport, rows: Sequence[SuiteRow], causes: Mapping[str, str]
) -> list[OneLine]:
    """Return the lines of rows that are sorted, the worst of which speaks for the suite."""
    errors = {run.name: run.error for run in report.runs if run.error is not None}
    lines = []
    for row in rows:
        error = errors.get(row.run) if row.outcome is VerdictOutcome.ERROR else None
        found = causes.get(f"{row.run}/{row.task}", "")
        known = [f"{error.kind}: {error.message}"] if error is not None else [*row.reasons]
        known += [found] if found else []
        sound = row.outcome in _NEED_NO_CAUSE
        one = OneLine(
            describe_verdict(row),
            " ".join(filter(None, (f"{row.run}/{row.task}", row.model))),
            figures=describe_figures(row),
            counts=f"{row.failed} failed, {row.repaired} repaired" if error is None else "",
            cause="" if sound or not known else known[0],
            sure=bool(known) and known[0] != found,
        )
        lines.append(one)
    return lead(lines, range(len(lines)), "tasks")


def _conclude(report: SuiteReport, row: SuiteRow, line: OneLine) -> Conclusion:
    """Return the conclusion on a row; its name has no model, which the table's run names."""
    hints = [
        run.error.hint
        for run in report.runs
        if run.name == row.run and run.error is not None and row.outcome is VerdictOutcome.ERROR
    ]
    lost = bool(hints) or row.unasked is None
    statements = [Statement("fix", hint) for hint in hints if hint]
    if row.repaired:
        statements.append(Statement("repaired", count(row.repaired, "sample")))
    if not lost:
        reasons = [one for one in dict.fromkeys(row.reasons) if one != line.cause]
        statements += [Statement("reason", reason) for reason in reasons]
        statements += [Statement("warning", text, state="warn") for text in _list_warnings(row)]
    return Conclusion(
        f"{row.run}/{row.task}",
        describe_verdict(row),
        figures=line.figures,
        counts="" if lost or not (row.failed or row.repaired) else line.counts,
        cause=line.cause,
        sure=line.sure,
        statements=statements,
    )


def _list_warnings(row: SuiteRow) -> Iterator[str]:
    """Yield what must be seen of a row, and the warnings that its sample is small."""
    yield from list_remarks(row)
    reasons = " ".join(row.reasons)
    for line in row.warnings:
        # A row without pairs says so in its reason, under a rule that needs them.
        if (line.startswith(("small ", UNPAIRED)) or _FEW in line) and line not in reasons:
            yield line


def _list_statements(
    report: SuiteReport, out_dir: Path, rows: Sequence[SuiteRow], *, old: str
) -> Iterator[Statement]:
    """Yield what is known of the suite as a whole."""
    if report.changes is not None:
        yield Statement("since", describe_changes(report.changes))
    for use in report.waivers:
        label, text = describe_waiver(use)
        yield Statement(label, text, state="warn" if label == "warning" else "none")
    for row in rows:
        if row.other is not None and row.other.outcome is not row.outcome:
            text = f"{row.run}/{row.task}: by {row.rule}; {row.other.rule} says {row.other.outcome}"
            yield Statement("rule", text, depth=Depth.MORE)
    if sum(row.p_holm is not None and row.rule in GATES for row in report.rows) > 1:
        text = (
            f"{report.alpha:g} or less proves a drop; the probability of any false alarm is at most"
            f" {report.alpha:g}; q is for triage only"
        )
        yield Statement("p holm", text)
    if old:
        text = (
            "these answers are earlier ones; to ask again, name another folder or give --rerun all"
        )
        yield Statement("older", text)
    if cost := sum_up_cost(report.cost):
        yield Statement("cost", cost)
    if not report.rehearsal and _list_lacking(rows):
        yield Statement("note", HOW_TO_TAKE)
    text = f"{out_dir}/runs/RUN, each with report.json"
    yield Statement("runs", text, depth=Depth.MORE)


def _list_next(
    report: SuiteReport, out_dir: Path, rows: Sequence[SuiteRow], again: str
) -> Iterator[str]:
    """Yield the commands that come next: look, ask more, take the references that lack."""
    if (worst := find_worth_a_look(rows)) is not None:
        yield f"serve-eval show {quote_path(out_dir / SUITE_RUNS / worst.run)} --wrong"
    if again and any(run.error is not None for run in report.runs):
        yield again
    if again and (why := next((run.not_asked for run in report.runs if run.not_asked), "")):
        yield f"{again} {write_larger(why.partition(':')[0])}"
    if not report.rehearsal and (lacking := _list_lacking(rows)):
        run = lacking[0].run
        plan = read_plan(out_dir / SUITE_RUNS / run)
        yield write_taking(plan, [row.task for row in lacking if row.run == run])


def _list_lacking(rows: Sequence[SuiteRow]) -> list[SuiteRow]:
    return [row for row in rows if row.outcome is VerdictOutcome.NO_REFERENCE]


def tabulate(rows: Sequence[SuiteRow]) -> DataTable:
    """Return a line for each run and task, the worst first, without a column that says nothing."""
    attributes = list(dict.fromkeys(key for row in rows for key in row.attributes))
    tested = any(row.p is not None for row in rows)
    names = ["verdict", "run", *attributes, "task", "value", "95 %", "reference", "fails"]
    names += _TESTED if tested else ()
    texts = [list_texts(row, attributes, tested=tested) for row in rows]
    fixed = ("verdict", "run", "task", "value")
    kept = [
        i
        for i, name in enumerate(names)
        if name in fixed or any(cells[i] != "-" for cells in texts)
    ]
    figures = ("value", "95 %", "reference", "fails", *_TESTED)
    return DataTable(
        "All tasks",
        columns=[
            DataColumn(
                names[i], number=names[i] in figures, spare=_rank_spare(names[i], attributes)
            )
            for i in kept
        ],
        rows=[
            [DataCell(cells[i], state=find_state(row) if i == 0 else "none") for i in kept]
            for row, cells in zip(rows, texts, strict=True)
        ],
        caption="The worst first.",
    )


def _rank_spare(name: str, attributes: Sequence[str]) -> int:
    """Return when a narrow terminal leaves a column out: 0 for never, else the lowest first."""
    told = "" if name in attributes else name
    return _SPARE.index(told) + 1 if told in _SPARE else 0


def _describe_case(row: SuiteRow, line: OneLine) -> CiCase:
    *_, value, _, reference, limit = list_texts(row, (), tested=False)
    waived = [] if row.waiver is None else [f"until {row.waiver.until}: {row.waiver.reason}"]
    return CiCase(
        row.run,
        row.task,
        state=choose_row_state(row),
        line=line if not waived else replace(line, cause=waived[0], sure=True),
        remarks=[
            *(f"{row.run}/{row.task}: {one}" for one in list_remarks(row)),
            *([f"{count(row.repaired, 'sample')} repaired"] if row.repaired else ()),
        ],
        details=[
            *waived,
            *row.reasons,
            *(f"warning: {say_in_words(text)}" for text in row.warnings),
        ],
        properties={
            "value": value,
            "reference": reference,
            "fails": limit,
            "repaired": str(row.repaired),
            **list_other(row.other),
            **{name: str(text) for name, text in row.attributes.items()},
        },
    )


def describe_old_runs(report: SuiteReport, out_dir: Path) -> str:
    """Return how many runs were not asked, with the time of their last answer; "" if all were."""
    old = _list_old_runs(report)
    at = find_last_answer(out_dir / SUITE_RUNS / name for name in old)
    if not at:
        return ""
    if len(old) == len(report.runs):
        return write_notice(at)
    are = "is" if len(old) == 1 else "are"
    return f"{len(old)} of {len(report.runs)} runs {are} older: last answer {at}"


def describe_each_old_run(report: SuiteReport, out_dir: Path) -> dict[str, str]:
    """Return for each run that was not asked the time of its last answer, in words."""
    old = {name: find_last_answer([out_dir / SUITE_RUNS / name]) for name in _list_old_runs(report)}
    return {name: write_notice(at) for name, at in old.items() if at}


def _list_old_runs(report: SuiteReport) -> list[str]:
    return [run.name for run in report.runs if run.kept or describe_old_answers(run.warnings)]


_LAUNCHED = re.compile(r".*?: (the reference was taken at .*); this run is at (.*)", re.DOTALL)
"""The warning about a reference of a server that was launched otherwise, after its task."""


def list_run_warnings(report: SuiteReport) -> Iterator[str]:
    """Yield each warning with its runs; all runs that differ from one reference share one."""
    launched: dict[str, dict[str, str]] = {}
    others: dict[str, dict[str, None]] = {}
    for run in report.runs:
        for warning in run.warnings:
            if found := _LAUNCHED.fullmatch(warning):
                launched.setdefault(found[1], {})[run.name] = found[2]
            else:
                others.setdefault(warning, {})[run.name] = None
    for taken, runs in launched.items():
        named = ", ".join(f"{name} ({at})" for name, at in runs.items())
        yield f"{taken}; launched otherwise: {named}"
    yield from (f"{', '.join(runs)}: {warning}" for warning, runs in others.items())


def describe_waiver(use: WaiverUse) -> Row:
    """Return what became of a waiver, with a label."""
    waiver = use.waiver
    what = ", ".join(f"{key} {value}" for key, value in waiver.match.items())
    failing = ", ".join(use.failing)
    said = {
        WaiverState.APPLIED: f"until {waiver.until}: {failing}: {waiver.reason}",
        WaiverState.EXPIRED: (
            f"the waiver for {what} expired on {waiver.until} ({waiver.reason}); "
            + (
                f"it no longer covers {failing}"
                if failing
                else "no task that it matches fails: remove it"
            )
        ),
        WaiverState.NOT_NEEDED: (
            f"the waiver for {what} is no longer needed: every task that it matches passes "
            f"({waiver.reason}, until {waiver.until})"
        ),
        WaiverState.UNDECIDED: (
            f"the waiver for {what} was not needed so far: a task that it matches is still"
            f" undecided ({waiver.reason}, until {waiver.until})"
        ),
        WaiverState.NO_MATCH: (
            f"the waiver for {what} matches no task of this suite ({waiver.reason})"
        ),
    }
    warned = use.state in (WaiverState.EXPIRED, WaiverState.NO_MATCH)
    label = "waived" if use.state is WaiverState.APPLIED else "warning" if warned else "note"
    return label, said[use.state]
