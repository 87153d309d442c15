"""Make the document of answers that were scored again. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.report.ci_result import CiCase, CiState, CiSuite, OneLine, lead
from serve_eval.report.document import (
    Block,
    Conclusion,
    Document,
    Statement,
    make_header,
    rank_outcome,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.summary.figures import write_number
from serve_eval.shell_words import quote_argument, quote_path, quote_word
from serve_eval.workflows.rescore import Changed, Rescored, RescoreSummary

NOT_SCORED, CHANGED, UNCHANGED = "NOT SCORED", "CHANGED", "UNCHANGED"
"""Outcomes of a task, the worst first."""
SHOWN = 50
"""Changed samples in the table of a task."""
TARGET_CHARACTERS = 40


def make_document(
    found: Sequence[Rescored],
    run: Path,
    *,
    exit_code: int,
    to: Path | None = None,
    flags: str = "",
    again: str = "",
) -> Document:
    """Return the document of new scores: the values, what turned into what, and the new verdicts.

    `to` is the new run folder, if one was written; else `again` is the command that writes one.
    `flags` are the permissions that commands on these folders need again.
    """
    conclusions = [
        Conclusion(
            one.task,
            _name_outcome(one),
            figures=_describe_value(one),
            statements=list(_describe_changes(one)),
        )
        for one in found
    ]
    document = Document(
        "rescore",
        f"serve-eval judge --rescore {quote_path(run)}",
        make_header(exit_code),
        conclusions=conclusions,
        outcome="" if found else NOT_SCORED,
        statements=[]
        if to is None
        else [Statement("folder", f"{to} has these scores; the run stays as it is")],
        blocks=[_tabulate(one) for one in found if one.changed],
        commands=list(_list_next(found, run, to, again, flags)),
    )
    if not found:
        return document
    ranks = [rank_outcome(one.outcome) for one in conclusions]
    lines = lead([_make_line(one) for one in found], ranks, document.noun)
    cases = [
        CiCase(
            "rescore",
            one.task,
            state=CiState.PASSED if one.answered else CiState.ERROR,
            line=line,
        )
        for one, line in zip(found, lines, strict=True)
    ]
    return replace(
        document,
        suites=[CiSuite("serve-eval judge --rescore", cases)],
        line=lines[ranks.index(min(ranks))],
    )


def _name_outcome(one: Rescored) -> str:
    if not one.answered:
        return NOT_SCORED
    judged = None not in (one.verdict_before, one.verdict_after)
    turned = judged and one.verdict_before != one.verdict_after
    return CHANGED if one.changed or turned else UNCHANGED


def _describe_value(one: Rescored) -> str:
    if one.before == one.after:
        return _number(one.after)
    change = ""
    if one.before is not None and one.after is not None:
        sign = "+" if one.after > one.before else ""
        change = f" ({sign}{write_number(one.after - one.before)})"
    return f"{_number(one.before)} -> {_number(one.after)}{change}"


def _make_line(one: Rescored) -> OneLine:
    causes = [f"{name} {old} -> {new}" for name, (old, new) in one.options.items()]
    verdict = [] if one.verdict_after is None else [_describe_verdict(one)]
    return OneLine(
        _name_outcome(one),
        f"rescore {one.task}",
        figures=f"{_number(one.after)} against {_number(one.before)}",
        counts=f"{one.answered} of {one.planned} scored, {one.moved} changed outcome",
        cause=", ".join([*verdict, *causes]),
        sure=True,
    )


def _describe_verdict(one: Rescored) -> str:
    """Return the new verdict, and whether it is another one than before."""
    against = "" if one.reference is None else f" against {write_number(one.reference)}"
    if one.verdict_before is None:
        before = ""
    elif one.verdict_before == one.verdict_after:
        before = ", as before"
    else:
        before = f", {one.verdict_before} before"
    return f"{one.verdict_after}{against}{before}"


def _describe_changes(one: Rescored) -> Iterator[Statement]:
    """Yield the verdict, the options, the samples that changed, examples and remarks."""
    if one.verdict_after is not None:
        turned = one.verdict_before not in (None, one.verdict_after)
        text = _describe_verdict(one)
        yield Statement("verdict", text, keep=True, state="warn" if turned else "none")
    if one.answered < one.planned:
        text = f"{one.answered} of {one.planned} samples have a score"
        yield Statement("scored", text)
    for option, (before, after) in one.options.items():
        yield Statement("option", f"{option}: {before} -> {after}")
    if one.changed:
        only = len(one.changed) - one.moved
        rest = f"; {only} more changed only the value or the extracted answer" if only else ""
        moves = ", ".join(f"{count} {old} -> {new}" for old, new, count in one.moves)
        text = f"{one.moved} of {one.answered} changed outcome{f': {moves}' * bool(moves)}{rest}"
        yield Statement("samples", text)
    elif one.answered:
        yield Statement("samples", f"none of {one.answered} changed")
    if one.changed:
        yield Statement("e.g.", _describe_sample(one.changed[0]))
    yield from (Statement("warning", note, state="warn") for note in one.notes)


def _describe_sample(changed: Changed) -> str:
    before, after = _describe(changed.before), _describe(changed.after)
    return f"{changed.id}: {before} -> {after}; target {_shorten(changed.target)!r}"


def _shorten(target: str) -> str:
    """Return the end of an expected answer, which says more than its beginning."""
    flat = " ".join(target.split())
    return flat if len(flat) <= TARGET_CHARACTERS else f"...{flat[3 - TARGET_CHARACTERS :]}"


def _describe(told: RescoreSummary | None) -> str:
    if told is None:
        return "not scored"
    answer = "nothing extracted" if told.answer is None else repr(told.answer)
    return f"{told.outcome} {told.value:g}, {answer}"


def _number(value: float | None) -> str:
    return "-" if value is None else write_number(value)


def _tabulate(one: Rescored) -> Block:
    """Return the table of the first samples of a task that changed."""
    left = len(one.changed) - SHOWN
    section = DataTable(
        f"Changed samples of {one.task}",
        columns=[DataColumn(name) for name in ("sample", "before", "after", "target")],
        rows=[
            [
                DataCell(text)
                for text in (
                    changed.id,
                    _describe(changed.before),
                    _describe(changed.after),
                    _shorten(changed.target),
                )
            ]
            for changed in one.changed[:SHOWN]
        ],
        caption=f"and {left} more: --json lists all" if left > 0 else "",
    )
    return Block(section)


def _list_next(
    found: Sequence[Rescored], run: Path, to: Path | None, again: str, flags: str
) -> Iterator[str]:
    """Yield the commands that come next: a sample that changed, and a verdict on the new scores."""
    changed = next((one for one in found if one.changed), None)
    if changed is not None:
        task = f" --task {quote_word(changed.task)}" if len(found) > 1 else ""
        sample = quote_argument(changed.changed[0].id)
        yield f"serve-eval show {quote_path(to or run)}{task} {sample}"
    if to is None:
        if changed is not None and again:
            yield again + flags
    elif any(one.verdict_after is not None for one in found):
        yield f"serve-eval judge {quote_path(to)}{flags}"
    elif any(one.answered < one.planned for one in found):
        yield f"serve-eval run --resume {quote_path(to)}{flags}"
