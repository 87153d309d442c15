"""Make the document of a diagnosis: what failed, its likeliest cause, how sure, what comes next."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from urllib.parse import urlencode

from serve_eval.report.ci_result import CiCase, CiState, CiSuite
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
from serve_eval.report.summary.headline import UNICODE, list_parts
from serve_eval.shell_words import quote_path
from serve_eval.verdicts.exit_code import PASS
from serve_eval.workflows.diagnose.breakdown import Breakdown, describe_kinds, describe_misses
from serve_eval.workflows.diagnose.course import RULE
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.judged import ENDED_EARLY, STOPPED, FolderOutcomes
from serve_eval.workflows.diagnose.story import (
    DiagnosedRun,
    DiagnosedTask,
    Diagnosis,
    ExplainedTask,
    explain,
)

MOST_COMMANDS = 3
"""Commands that come next, at most."""
_STATES = {"fail": CiState.FAILURE, "pass": CiState.PASSED}


def make_document(found: Diagnosis, outcomes: FolderOutcomes, folder: Path) -> Document:
    """Return the document of a diagnosis. Its exit code is 0: a diagnosis is no verdict."""
    told = [explain(one, found) for one in outcomes.judged]
    told.sort(key=lambda one: rank_outcome(one.judged.outcome))
    commands = _choose_commands(outcomes, told)
    document = Document(
        "diagnose",
        f"serve-eval diagnose {quote_path(folder)}",
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
    return document.with_suites(
        [
            CiSuite(
                "serve-eval diagnose",
                [
                    CiCase(
                        "diagnose",
                        one.name,
                        state=_choose_state(one.outcome),
                        message=one.cause,
                        line=line,
                        details=[f"{row.label}: {row.text}" for row in one.statements],
                    )
                    for one, line in zip(document.conclusions, document.make_lines(), strict=True)
                ],
                host=document.endpoint,
            )
        ]
    )


def _conclude(told: ExplainedTask, page: str, commands: Sequence[str]) -> Conclusion:
    """Return the outcome of a task with the figures of its verdict, and its cause."""
    judged, line = told.judged, told.judged.line
    cause, sure = _name_cause(told)
    drawn, ruler = "", None
    if judged.summary is not None:
        ruler = rule_task(judged.summary)
        drawn = "  ".join(list_parts(judged.summary, None if ruler is None else UNICODE))
    return Conclusion(
        judged.name,
        judged.outcome,
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
        state = DataCell(outcome, state=name_state(outcome))
        rows.append([state, *(DataCell(text) for text in texts)])
    names = ("outcome", "task", "value", "reference", "wrong or missing")
    columns = [DataColumn(name, number=i > 1) for i, name in enumerate(names)]
    return DataTable("Tasks", columns=columns, rows=rows)


def _describe_all(outcomes: FolderOutcomes, folder: Path) -> Iterator[Statement]:
    if outcomes.again:
        yield Statement("go on", outcomes.again)
    yield Statement("folder", str(folder), depth=Depth.MORE)
    if outcomes.page:
        text = "the page of the result, with all samples"
        yield Statement("page", text, depth=Depth.PAGE, href=outcomes.page)


def _choose_commands(outcomes: FolderOutcomes, told: Sequence[ExplainedTask]) -> list[str]:
    """Return the commands that come next: those about all, then the first one of each task."""
    rounds = zip_longest(*(one.list_commands() for one in told))
    every = chain(outcomes.commands, chain.from_iterable(rounds))
    return list(dict.fromkeys(one for one in every if one is not None))[:MOST_COMMANDS]


def _choose_state(outcome: str) -> CiState:
    if outcome in (ENDED_EARLY, STOPPED):
        return CiState.ERROR
    return _STATES.get(name_state(outcome), CiState.SKIPPED)


ADVICE = ("change", "or", "try")
"""Labels of advice, which may be a command."""
_JUDGED = ("PASS", "FAIL", "INCONCLUSIVE")


def list_rows(
    told: ExplainedTask, why: str, page: str, commands: Collection[str]
) -> Iterator[Statement]:
    """Yield the rows of an outcome. `why` is its reason if that is known for sure.

    `page` is the page of the result, to which examples lead, and `commands` come next, so that no
    row repeats them.
    """
    for row in _list_all(told, why, page):
        if row.label not in ADVICE or row.text not in commands:
            yield row


def _list_all(told: ExplainedTask, why: str, page: str) -> Iterator[Statement]:
    if why:
        yield Statement("why", why)
    if told.judged.fix:
        yield Statement("fix", told.judged.fix)
    if told.ended is not None:
        yield from _list_advice(told.ended, first=True)
    first, *more = told.causes or (None,)
    if first is not None:
        yield from _describe_cause(first, len(more), passed=told.passed)
    task, a = told.task, None if told.a is None else told.a[1]
    if task is not None:
        yield from _describe_lost(task, a, page)
    for one in more:
        yield from _describe_other(one, "also")
    for one in told.others:
        yield from _describe_other(one, "seen")
    if task is not None:
        yield from _describe_unexplained(told, task)
        yield from _describe_verdict(told, task)
    if told.a is not None:
        yield from _describe_a(told.a[0], a, page)


def _describe_cause(one: Finding, more: int, *, passed: bool) -> Iterator[Statement]:
    """Yield the likeliest cause, what speaks for it and against it, and what to change."""
    label, text = "seen" if passed else "likely", f"{one.rule}: {one.told}"
    yield Statement(label, one.rather or text)
    if one.rather:
        yield Statement("for", text)
    yield Statement("sure", _weigh(one))
    against = []
    if one.explains is not None and one.lost > one.explains:
        rest = one.lost - one.explains
        against.append(f"{rest} of the wrong or missing answers {_have(rest)} another cause")
    if more:
        finding = "finding" if more == 1 else "findings"
        against.append(f"{more} other {finding} may explain the same answers")
    if against:
        yield Statement("against", "; ".join(against))
    yield from _list_advice(one, first=True)


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _weigh(one: Finding) -> str:
    """Return how much a finding explains, and how sure that is."""
    sure = "not tested" if one.p is None else f"p {one.write_p()}"
    if one.explains is None:
        return f"{sure}; the answers that it explains are not counted"
    return f"explains up to {one.explains} of {one.lost} wrong or missing answers ({sure})"


def _list_advice(one: Finding, *, first: bool) -> Iterator[Statement]:
    """Yield what to change, the ids of samples and lines of logs.

    Words of advice come first: a command is on the first screen only among those that come next,
    and one with a name to replace only with -v.
    """
    advice = sorted(one.change, key=_is_line_to_type)
    for i, words in enumerate(advice):
        shown = first and i == 0 and not _is_line_to_type(words)
        depth = Depth.FIRST if shown else Depth.MORE
        yield Statement("or" if i else "change", words, depth=depth)
    if one.samples:
        yield Statement("samples", ", ".join(one.samples), depth=Depth.MORE)
    for line in one.log:
        yield Statement("log", line, depth=Depth.FIRST if first else Depth.MORE)


def _is_line_to_type(words: str) -> bool:
    return words.startswith("serve-eval ")


def _describe_other(one: Finding, label: str) -> Iterator[Statement]:
    """Yield a finding that is not the likeliest cause; a remark is not on the first screen."""
    depth = Depth.MORE if one.is_remark or one.rule == RULE else Depth.FIRST
    yield Statement(label, f"{one.rule}: {one.told}", depth=depth)
    yield Statement("sure", _weigh(one), depth=Depth.MORE)
    yield from _list_advice(one, first=False)


def _describe_lost(task: DiagnosedTask, a: DiagnosedTask | None, page: str) -> Iterator[Statement]:
    """Yield the lost samples of a task, or of B next to those of `a`, by kind, with examples."""
    text = f"{task.wrong} of {task.asked} samples are wrong, {task.missing} missing"
    if a is not None:
        text = f"B: {text}; A: {a.wrong} of {a.asked} are wrong, {a.missing} missing"
    if task.breakdown is None:
        yield Statement("asked", text)
        return
    examples = _list_examples(task.breakdown, task.task, page)
    yield from examples[:1]
    yield Statement("asked", text)
    lost = (describe_kinds(task.breakdown), *describe_misses(task.breakdown))
    yield Statement("lost", "; ".join(lost))
    yield from examples[1:]
    for line in task.breakdown.judge_errors:
        yield Statement("judges", line)
    for line in task.breakdown.next:
        yield Statement("try", line, depth=Depth.MORE)


def _list_examples(found: Breakdown, task: str, page: str) -> Sequence[Statement]:
    """Return the examples; all but the first are deeper."""
    return [
        Statement(
            "e.g.",
            f"{one.id}: answered {one.answer!r}, expected {one.target!r}",
            depth=Depth.MORE if i else Depth.FIRST,
            href=f"{page}#{urlencode({'sample': f'{task}/{one.id}'})}" if page else "",
        )
        for i, one in enumerate(found.examples)
    ]


def _describe_unexplained(told: ExplainedTask, task: DiagnosedTask) -> Iterator[Statement]:
    """Yield that nothing is to be explained, or that no rule explains what was lost."""
    if told.causes or told.others or told.ended is not None:
        return
    red = task.breakdown is not None
    text = "no rule explains the lost samples" if red else "there is no loss to explain"
    yield Statement("note", text)


def _describe_verdict(told: ExplainedTask, task: DiagnosedTask) -> Iterator[Statement]:
    """Yield the rule of the verdict, the outcome of the run alone, and what the report names."""
    for accusation in task.accused:
        yield Statement("workers", f"the report names {accusation}")
    if task.in_suite and (task.outcome is not None or task.in_suite != ENDED_EARLY):
        alone = "the run did not finish" if task.outcome is None else task.outcome
        yield Statement("suite", f"{alone} alone; in the suite: {task.in_suite}")
    if told.a is not None:
        yield Statement("B", _describe_side(task), depth=Depth.MORE)
    elif limits := _list_limits(task):
        yield Statement("rule", limits, depth=Depth.MORE)


def _describe_a(run: DiagnosedRun, task: DiagnosedTask | None, page: str) -> Iterator[Statement]:
    """Yield the result and the findings of the other side of a comparison."""
    yield Statement("A", f"run {run.folder}", depth=Depth.MORE)
    if task is not None:
        yield Statement("A", _describe_side(task), depth=Depth.MORE)
        if task.breakdown is not None:
            kinds = describe_kinds(task.breakdown)
            yield Statement("A", f"lost: {kinds}")
            for one in _list_examples(task.breakdown, task.task, page):
                yield Statement("A", f"e.g. {one.text}", depth=one.depth)
    name = "" if task is None else task.task
    for finding in run.findings:
        if not name or finding.task in (None, name):
            yield Statement("A", f"{finding.rule}: {finding.told}", depth=Depth.MORE)
            yield Statement("sure", _weigh(finding), depth=Depth.MORE)
            yield from _list_advice(finding, first=False)


def _describe_side(task: DiagnosedTask) -> str:
    """Return the result of a side by itself. That it lacks a reference says nothing."""
    outcome = "" if task.outcome == "NO REFERENCE" else task.outcome
    value = "" if task.value is None else f"{task.value:.3f}"
    ended = "the run did not finish" if task.outcome is None else outcome
    return ", ".join(filter(None, (ended, value, _list_limits(task))))


def _list_limits(task: DiagnosedTask) -> str:
    """Return the rule of a verdict with its threshold or its margin, or "" if it has none."""
    limits = [task.rule] if task.rule and task.outcome in _JUDGED else []
    limits += [] if task.threshold is None else [f"threshold {task.threshold:.3f}"]
    limits += [] if task.margin is None else [f"margin {task.margin:.3f}"]
    return ", ".join(limits)
