"""Make the document of a diagnosis: what failed, its likeliest cause, how sure, what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from serve_eval.report.ci import CiCase, CiState, CiSuite
from serve_eval.report.document import (
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    name_state,
    rank_outcome,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.run.conclusions import rule_task
from serve_eval.report.summary import figures
from serve_eval.report.summary.axis import UNICODE
from serve_eval.report.summary.headline import list_parts
from serve_eval.shell_words import quote_path
from serve_eval.verdicts.exit_code import PASS
from serve_eval.workflows.diagnose.explained_task import ExplainedTask, explain
from serve_eval.workflows.diagnose.outcomes import ENDED_EARLY, STOPPED, FolderOutcomes
from serve_eval.workflows.diagnose.rows import list_rows
from serve_eval.workflows.diagnose.story import Diagnosis

MOST_COMMANDS = 3
"""Commands that come next, at most."""
_STATES = {"fail": CiState.FAILURE, "pass": CiState.PASSED}


def make_document(found: Diagnosis, outcomes: FolderOutcomes, folder: Path) -> Document:
    """Return the document of a diagnosis. Its exit code is 0: a diagnosis is no verdict."""
    told = [explain(one, found) for one in outcomes.judged]
    told.sort(key=lambda one: rank_outcome(one.judged.outcome))
    commands = _choose_commands(outcomes, told)
    document = Document(
        story="diagnose",
        command=f"serve-eval diagnose {quote_path(folder)}",
        names_endpoint=False,
        header=make_header(
            PASS,
            started_at=outcomes.started_at,
            model=outcomes.model,
            rehearsal=outcomes.rehearsal,
        ),
        conclusions=[_conclude(one, outcomes.page, commands) for one in told],
        outcome=outcomes.outcome,
        noun=outcomes.noun,
        overview=_tabulate(told) if len(told) > 1 and any(one.task for one in told) else None,
        endpoint=outcomes.endpoint,
        statements=list(_describe_all(outcomes, folder)),
        commands=commands,
        counted_as=outcomes.counted_as,
    )
    return document.with_suites([_make_suite(document)])


def _conclude(told: ExplainedTask, page: str, commands: Sequence[str]) -> Conclusion:
    """Return the outcome of a task with the figures of its verdict, and its cause."""
    judged, line = told.judged, told.judged.line
    cause, sure = _name_cause(told)
    drawn, ruler = "", None
    if judged.summary is not None:
        ruler = rule_task(judged.summary)
        drawn = "  ".join(list_parts(judged.summary, None if ruler is None else UNICODE))
    return Conclusion(
        name=judged.name,
        outcome=judged.outcome,
        figures="" if line is None else line.figures,
        drawn=drawn,
        ruler=ruler,
        counts="" if line is None else line.counts,
        cause=cause,
        sure=sure,
        statements=list(list_rows(told, cause if sure else "", page, commands)),
    )


def _name_cause(told: ExplainedTask) -> tuple[str, bool]:
    """Return the cause in a few words, and whether it is the reason itself."""
    judged, line = told.judged, told.judged.line
    if told.ended is not None and not judged.why:
        return told.ended.told, True
    if judged.why:
        return judged.why, True
    if line is None or told.passed:
        return "", True
    if line.sure or not told.causes:
        return line.cause, line.sure
    return told.causes[0].brief, False


def _tabulate(told: Sequence[ExplainedTask]) -> DataTable:
    """Return a row for each task: its value, that of the reference, and the lost samples."""
    rows = []
    for one in told:
        outcome, summary, task = one.judged.outcome, one.judged.summary, one.task
        value = reference = "-"
        if summary is not None:
            value = figures.show_value(summary)
            if (taken := summary.verdict.reference) is not None:
                reference = figures.figure(taken, summary.result.metric)
        lost = "-" if task is None else f"{task.wrong + task.missing} of {task.asked}"
        texts = (one.judged.name, value, reference, lost)
        state = DataCell(text=outcome, state=name_state(outcome))
        rows.append([state, *(DataCell(text=text) for text in texts)])
    names = ("outcome", "task", "value", "reference", "wrong or missing")
    columns = [DataColumn(name=name, number=i > 1) for i, name in enumerate(names)]
    return DataTable(title="Tasks", columns=columns, rows=rows)


def _describe_all(outcomes: FolderOutcomes, folder: Path) -> Iterator[Statement]:
    if outcomes.again:
        yield Statement(label="go on", text=outcomes.again)
    yield Statement(label="folder", text=str(folder), depth=Depth.MORE)
    if outcomes.page:
        text = "the page of the result, with all samples"
        yield Statement(label="page", text=text, depth=Depth.PAGE, href=outcomes.page)


def _choose_commands(outcomes: FolderOutcomes, told: Sequence[ExplainedTask]) -> list[str]:
    """Return the commands that come next: those about all, then the first one of each task."""
    rounds = zip_longest(*(one.list_commands() for one in told))
    every = chain(outcomes.commands, chain.from_iterable(rounds))
    return list(dict.fromkeys(one for one in every if one is not None))[:MOST_COMMANDS]


def _make_suite(document: Document) -> CiSuite:
    """Return a case for each outcome; one that decided nothing is skipped."""
    return CiSuite(
        name="serve-eval diagnose",
        cases=[
            CiCase(
                group="diagnose",
                name=one.name,
                state=_choose_state(one.outcome),
                message=one.cause,
                line=line,
                details=[f"{row.label}: {row.text}" for row in one.statements],
            )
            for one, line in zip(document.conclusions, document.make_lines(), strict=True)
        ],
        host=document.endpoint,
    )


def _choose_state(outcome: str) -> CiState:
    if outcome in (ENDED_EARLY, STOPPED):
        return CiState.ERROR
    return _STATES.get(name_state(outcome), CiState.SKIPPED)
