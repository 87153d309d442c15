"""Make the document of a check of invariants. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    name_state,
    rank_outcome,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.schema import Invariant, Invariants
from serve_eval.shell_words import quote_path
from serve_eval.storage.story_files import INVARIANTS
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS
from serve_eval.workflows.invariants.arms import BASE
from serve_eval.workflows.invariants.cache_use import describe_pressure, describe_use

DIFFERS, NOT_TESTED = "DIFFERS", "NOT TESTED"
"""Outcomes of changes that accuse nobody: numerics differ, or equal answers show nothing."""
COLUMNS = ("outcome", "change", "task", "asked", "changed", "itself", "same", "p")
CAPTION = (
    "changed: prompts whose answer changes with the change; itself: without it; same: identical"
    " answers; p: corrected for all changes and tasks"
)
_OUTCOMES = {FAIL: "FAIL", PASS: "PASS", NOTHING_SCORED: "ERROR"}
_STATES = {"FAIL": CiState.FAILURE, "PASS": CiState.PASSED}


def make_document(found: Invariants, out_dir: Path) -> Document:
    """Return the document of a check: the changes that changed answers, then the others."""
    conclusions = [_conclude(found, one) for one in found.results] or [
        Conclusion(
            name="changes",
            outcome="ERROR",
            cause="no prompt was answered in all passes of a change",
        )
    ]
    outcome = _OUTCOMES[found.exit_code]
    table = _tabulate(found, conclusions)
    return Document(
        story="invariants",
        command=f"serve-eval check invariants {found.base_url}",
        header=found,
        outcome="INCONCLUSIVE" if found.rehearsal and outcome != "ERROR" else outcome,
        conclusions=conclusions,
        noun="changes",
        overview=table,
        endpoint=found.base_url,
        statements=[
            Statement(label="not tried", text=f"{name}: {why}", depth=Depth.MORE)
            for name, why in found.skipped.items()
        ],
        blocks=[] if len(found.results) != 1 else [Block(section=table, depth=Depth.FIRST)],
        commands=list(_list_next(found, out_dir))[:3],
        suites=_list_suites(found, conclusions),
        result=out_dir / INVARIANTS.result,
    )


def _name_outcome(found: Invariants, one: Invariant) -> str:
    if found.rehearsal:
        return "NOT JUDGED"
    if one.broken:
        return "FAIL"
    if one.fell is not None and one.changed.more:
        return DIFFERS
    return "PASS" if one.not_tested is None else NOT_TESTED


def _name(found: Invariants, one: Invariant) -> str:
    """Return the name of a change, with its task if there are several."""
    several = len({other.task for other in found.results}) > 1
    return f"{one.arm}, {one.task}" if several else one.arm


def _conclude(found: Invariants, one: Invariant) -> Conclusion:
    """Return what a change did to the answers to a task."""
    outcome = _name_outcome(found, one)
    changed = one.changed
    figures = f"{changed.other} of {changed.prompts} answers changed, {changed.own} by themselves"
    if one.fell is not None and outcome == "FAIL":
        figures = (
            f"{one.fell} of {changed.prompts} scores fell with many in flight, {one.rose} rose"
        )
    return Conclusion(
        name=_name(found, one),
        outcome=outcome,
        figures=f"{figures}, p {one.p_holm:.2g}",
        cause=_explain(one) if outcome in ("FAIL", NOT_TESTED) else "",
        statements=list(_describe(one, outcome)),
    )


def _explain(one: Invariant) -> str:
    """Return the change that is broken, or why it was not tested."""
    return f"answers change when asked {one.what}" if one.broken else one.not_tested or ""


def _describe(one: Invariant, outcome: str) -> Iterator[Statement]:
    """Yield what the change is, and what the server reports about it."""
    depth = Depth.FIRST if outcome == "FAIL" else Depth.MORE
    if outcome != "FAIL":
        yield Statement(label="change", text=one.what, depth=Depth.MORE)
    if one.cache is not None:
        yield Statement(label="cache", text=describe_use(one.cache), depth=depth)
    if one.pressure is not None and one.not_tested is None:
        fate, whole = (describe_pressure(one.pressure, broken=x) for x in (False, one.broken))
        yield Statement(label="cache", text=fate, depth=depth)
        if answers := whole.removeprefix(fate).removeprefix("; "):
            yield Statement(label="answers", text=answers, depth=depth)
    if one.fell is not None:
        yield Statement(label="scores", text=_describe_scores(one), depth=Depth.MORE)
    if outcome == DIFFERS:
        told = (
            f"{one.changed.other} answers change, {one.changed.own} do without the change: batch"
            " size changes numerics, so a sound server may differ here"
        )
        yield Statement(label="note", text=told)


def _describe_scores(one: Invariant) -> str:
    return (
        f"with many requests in flight, {one.fell} prompts have worse scores and {one.rose} better"
        " ones"
    )


def _list_next(found: Invariants, out_dir: Path) -> Iterator[str]:
    """Yield commands that show the samples whose scores a broken change turned."""
    broken = [one for one in found.results if one.broken and not found.rehearsal]
    for one in sorted(broken, key=lambda one: one.p_holm):
        if one.arm.startswith("chunked_"):
            continue
        places = [quote_path(out_dir / name) for name in (one.arm, BASE)]
        yield f"serve-eval show {places[0]} --against {places[1]}"


def _tabulate(found: Invariants, conclusions: Sequence[Conclusion]) -> DataTable:
    """Return a row for each change and task, the broken ones first."""
    pairs = zip(found.results, conclusions, strict=False)
    rows = sorted(pairs, key=lambda pair: rank_outcome(pair[1].outcome))
    several = len({one.task for one in found.results}) > 1
    kept = [i for i, name in enumerate(COLUMNS) if several or name != "task"]
    cells = [_list_cells(one, told.outcome) for one, told in rows]
    return DataTable(
        title="Changes",
        columns=[DataColumn(name=COLUMNS[i], number=i > 2) for i in kept],
        rows=[[row[i] for i in kept] for row in cells],
        caption=CAPTION,
    )


def _list_cells(one: Invariant, outcome: str) -> list[DataCell]:
    agreed, changed = one.agreement, one.changed
    identical = f"{agreed.identical / agreed.prompts:.1%}" if agreed.prompts else "-"
    numbers = (changed.prompts, changed.other, changed.own)
    return [
        DataCell(text=outcome, state=name_state(outcome)),
        DataCell(text=one.arm),
        DataCell(text=one.task),
        *(DataCell(text=str(number), order=float(number)) for number in numbers),
        DataCell(text=identical),
        DataCell(text=f"{one.p_holm:.2g}", order=one.p_holm),
    ]


def _list_suites(found: Invariants, conclusions: Sequence[Conclusion]) -> list[CiSuite]:
    """Return a case for each change and task; one that shows nothing is skipped."""
    pairs = list(zip(found.results, conclusions, strict=False))
    cases = [
        CiCase(
            group=one.task,
            name=one.arm,
            state=_STATES.get(told.outcome, CiState.SKIPPED),
            message=told.figures if told.outcome == "FAIL" else told.cause,
            details=[told.figures, *(f"{row.label}: {row.text}" for row in told.statements)],
        )
        for one, told in pairs
    ]
    cases += [
        CiCase(group="not tried", name=name, state=CiState.SKIPPED, message=why)
        for name, why in found.skipped.items()
    ]
    host, seconds = found.base_url, found.wall_s
    suite = CiSuite(name="serve-eval check invariants", cases=cases, host=host, seconds=seconds)
    return [suite] if cases else []
