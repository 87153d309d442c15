"""Make the document of a bisection. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from serve_eval.plugins.registry import name_folders
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State
from serve_eval.schema import Bisection, BisectionResult, BisectionStep, BisectionSuspect
from serve_eval.shell_words import quote_path
from serve_eval.storage.story_files import BISECT
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.search import (
    BUDGET,
    EXHAUSTED,
    FOUND,
    MOST_UNDECIDED,
    UNCONFIRMED,
    WEAK,
)

COLUMNS = ("step", "configuration", "result", "change", "answers")
CAPTION = "change: of the task that fell most, in points, estimated after an early stop"
_STATES: dict[BisectionResult | None, State] = {
    BisectionResult.WORSE: "fail",
    BisectionResult.SAME: "pass",
    BisectionResult.UNDECIDED: "warn",
    BisectionResult.NO_START: "warn",
}
_OUTCOMES = {FAIL: "FAIL", PASS: "PASS"}


def make_document(state: Bisection, found: Configurations, out_dir: Path) -> Document:
    """Return the document of a search: the culprit or why there is none, and the steps."""
    conclusion = Conclusion(
        ", ".join(state.tasks),
        _OUTCOMES.get(state.exit_code, "INCONCLUSIVE"),
        figures=_conclude(state, found),
        counts=_count_spent(state),
        cause="" if state.ending == FOUND else _explain_end(state, found),
        statements=list(_describe(state)),
    )
    return Document(
        "bisect",
        f"serve-eval bisect of {found.first} and {found.last}",
        state,
        conclusions=[conclusion],
        model=found.good.model or "",
        statements=list(_explain_steps(state)),
        blocks=list(_list_blocks(state, found)),
        warnings=state.warnings,
        commands=list(_list_next(state, found, out_dir)),
        result=out_dir / BISECT.result,
    )


def _conclude(state: Bisection, found: Configurations) -> str:
    """Return the culprit with its posterior; an undecided search has none."""
    if state.ending != FOUND or not state.suspects:
        return ""
    first = state.suspects[0]
    return f"{_name_culprit(first, state, found)}, posterior {write_share(first.posterior)}"


def write_share(share: float) -> str:
    """Return a probability with three digits, never rounded to 1."""
    return ">.999" if share > 0.9995 else f"{share:.3f}".removeprefix("0")


def _name_culprit(first: BisectionSuspect, state: Bisection, found: Configurations) -> str:
    names = list(first.members)
    if first.kind == "none":
        what = "step" if state.ordered else "option"
        return f"no {what}: {found.last} has no such drop against {found.first}"
    if first.kind == "outside":
        return (
            f"{found.first} is worse when it is asked again, so something that is not"
            f" in the {'steps' if state.ordered else 'options'} has changed"
        )
    if first.kind == "other":
        return "no step, option or set of options explains these results"
    if first.kind == "from":
        change = next(one for one in state.changes if one.name == names[0])
        return f"culprit: {names[0]}, the first bad step; {change.good} is the last good one"
    shown = ", ".join(
        f"{one.name} ({one.good} -> {one.bad})" for one in state.changes if one.name in names
    )
    if first.kind == "either":
        return f"culprits: each of these fails alone: {shown}"
    if len(names) == 1:
        return f"culprit: {shown}"
    return f"culprits: these fail only together: {shown}"


def _explain_end(state: Bisection, found: Configurations) -> str:
    if state.ending == BUDGET:
        return "the budget is spent"
    if state.ending == UNCONFIRMED:
        drop = state.steps[1].difference
        shown = "" if drop is None else f"; the difference is {drop:+.3g} points"
        return f"{found.last} is neither worse than {found.first} nor the same{shown}"
    if state.ending == WEAK:
        return (
            f"{MOST_UNDECIDED} steps in a row were undecided: the drop is too small for"
            f" {state.samples} samples"
        )
    if state.ending == EXHAUSTED:
        return "no further configuration would tell enough"
    return "the search has not ended"


def _describe(state: Bisection) -> Iterator[Statement]:
    """Yield the hypotheses that are left, how to go on, and the drop that counts."""
    if state.ending not in (FOUND, UNCONFIRMED) and state.suspects:
        rest = "; ".join(f"{one.text} {write_share(one.posterior)}" for one in state.suspects)
        yield Statement("probable", rest)
    if state.ending == BUDGET:
        text = "the same command with a larger budget and the same -o goes on"
        yield Statement("go on", text)
    if state.ending in (UNCONFIRMED, WEAK):
        text = "give a larger --limit, or a larger --margin, with another -o"
        yield Statement("go on", text)
    if state.margin is not None:
        text = (
            f"a drop above {state.margin:.3g} points counts ({', '.join(state.tasks)}); each result"
            f" errs with at most {f'{state.alpha:g}'.removeprefix('0')}"
        )
        yield Statement("worse", text)


def _count_spent(state: Bisection) -> str:
    parts = [_count(state.starts, "server start"), _count(state.requests, "answer")]
    if state.gpu_hours is not None:
        parts.append(f"{state.gpu_hours:.2f} GPU hours")
    lost = sum(step.result is BisectionResult.NO_START for step in state.steps)
    if lost:
        parts.append(f"{_count(lost, 'configuration')} cannot start")
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _explain_steps(state: Bisection) -> Iterator[Statement]:
    for step in state.steps:
        if step.reason and step.result in (BisectionResult.NO_START, BisectionResult.UNDECIDED):
            text = f"{step.result.value}: {step.reason}"
            yield Statement(f"step {step.number}", text, depth=Depth.MORE)


def _list_blocks(state: Bisection, found: Configurations) -> Iterator[Block]:
    """Yield the tables of the steps, of the leading hypotheses and of what was searched."""
    yield Block(_tabulate(state, found), depth=Depth.FIRST)
    yield Block(_tabulate_leading(state))
    if not state.ordered:
        yield Block(
            DataTable(
                "Options that differ",
                columns=[DataColumn(name) for name in ("option", found.first, found.last)],
                rows=[
                    [DataCell(text) for text in (one.name, one.good, one.bad)]
                    for one in state.changes
                ],
                caption="an option has one of the two values in each step",
            )
        )


def _tabulate(state: Bisection, found: Configurations) -> DataTable:
    rows = [_list_cells(step, found) for step in state.steps]
    kept = [i for i in range(len(COLUMNS)) if any(row[i].text for row in rows)]
    return DataTable(
        "Steps",
        columns=[DataColumn(COLUMNS[i], number=i > 2) for i in kept],
        rows=[[row[i] for i in kept] for row in rows],
        caption=CAPTION,
    )


def _list_cells(step: BisectionStep, found: Configurations) -> list[DataCell]:
    first = step.result is BisectionResult.REFERENCE
    result = "not finished" if step.result is None else step.result.value
    lost = step.result is BisectionResult.NO_START
    return [
        DataCell(str(step.number), order=float(step.number)),
        DataCell(found.first if first else found.describe(step.configuration)),
        DataCell(result, state=_STATES.get(step.result, "none")),
        DataCell("" if step.difference is None else f"{step.difference:+.3g}"),
        DataCell("-" if lost else f"{step.asked:,}", order=float(step.asked)),
    ]


def _tabulate_leading(state: Bisection) -> DataTable:
    known = [step for step in state.steps if step.posterior is not None]
    return DataTable(
        "Most probable after each step",
        columns=[DataColumn(name) for name in ("step", "hypothesis", "posterior")],
        rows=[
            [DataCell(str(one.number)), DataCell(one.leading), DataCell(share)]
            for one in known
            if one.result is not BisectionResult.REFERENCE
            for share in [write_share(one.posterior or 0.0)]
        ],
        caption=f"the search ends at a posterior above {state.confidence:g}",
    )


def _list_next(state: Bisection, found: Configurations, out_dir: Path) -> Iterator[str]:
    """Yield the command that explains the run of the culprit with the fewest changes."""
    if state.exit_code != FAIL:
        return
    worse = [step for step in state.steps if step.result is BisectionResult.WORSE]
    if found.space.ordered:
        last = min(worse, key=lambda step: step.configuration)
    else:
        last = min(worse, key=lambda step: (step.configuration.bit_count(), step.number))
    folders = name_folders(found.good.include_path)
    yield f"serve-eval diagnose {quote_path(out_dir / last.folder)}{folders}"
