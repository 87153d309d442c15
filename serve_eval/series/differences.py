"""Compare the deployments of a table with a baseline, prompt by prompt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evidence.answer_pairs import TaskAnswers, read_task
from serve_eval.evidence.score_pairs import keep_common, list_mismatches, score_pairs
from serve_eval.report.results_table import DeploymentRow, ResultCell, ResultsTable, TaskColumn
from serve_eval.report.results_table.cell import describe_run_effect
from serve_eval.report.results_table.content import RUN
from serve_eval.schema import MEAN
from serve_eval.series.cells import add_stars
from serve_eval.series.read_runs import drop_settings
from serve_eval.series.seeds import MatchedDraws, find_worst, join_runs, match_draws, pool
from serve_eval.storage.report_file import read_report

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


def compare_rows(table: ResultsTable, baseline: str) -> ResultsTable:
    """Return the table with the paired differences of its rows, and Holm's correction over them.

    `baseline` names a row, which the others are compared with; without it, each keeps the
    difference from the reference that judged it. Raises PlanError for an unknown name, and if
    nothing can be compared.
    """
    if baseline:
        first = _find(table, baseline)
        name = table.label(first)
        rows = [
            _compare(row, first, table.columns, names=(name, table.label(row)))
            for row in table.rows
            if row is not first
        ]
        table = replace(table, references=())
    else:
        cells = [cell for row in table.rows for cell in row.cells if cell is not None]
        names = {one.reference_name for one in cells if one.difference is not None}
        name = (
            f"the reference ({'; '.join(sorted(names))})" if len(names) == 1 else "the references"
        )
        rows = list(table.rows)
    rows, tests = add_stars(rows)
    if not tests:
        raise PlanError(
            "no differences: no run can be compared on the same prompts",
            hint="Name one of the runs: --baseline NAME. Or judge runs against a reference with"
            " scores of single samples.",
        )
    note = (
        f"paired with {name}, each prompt with itself; negative is worse; 95 % intervals,"
        f" two-sided; {tests} {'test' if tests == 1 else 'tests'} by Holm, two-sided"
    )
    if any(n > 1 for column in table.columns for n in column.repeats):
        note += "; with repeats on both sides, an interval is of these prompts alone"
    kept = [i for i, _ in enumerate(table.columns) if any(row.cells[i] for row in rows)]
    return replace(
        table,
        columns=[table.columns[i] for i in kept],
        rows=[replace(row, cells=[row.cells[i] for i in kept]) for row in rows],
        notes=(note, *table.notes),
        against=name,
    )


def _find(table: ResultsTable, name: str) -> DeploymentRow:
    """Return the row of a name: its label, the name of its run, or one of its run folders."""
    place = Path(name)
    found = [
        row
        for row in table.rows
        if name in (table.label(row), row.attributes.get(RUN))
        or any(
            cell is not None
            and any(
                one.run and (Path(one.run).name == name or Path(one.run) == place)
                for one in cell.draws or (cell,)
            )
            for cell in row.cells
        )
    ]
    if len(found) != 1:
        names = ", ".join(table.label(row) for row in table.rows)
        said = "several rows have" if found else "no row has"
        raise PlanError(f"--baseline: {said} the name {name!r}", hint=f"Rows: {names}.")
    return found[0]


def _compare(
    row: DeploymentRow,
    baseline: DeploymentRow,
    columns: Sequence[TaskColumn],
    *,
    names: tuple[str, str],
) -> DeploymentRow:
    """Return a row with its differences from the baseline.

    `names` are those of both, the baseline's first. A cell whose column the baseline lacks is
    paired with one of the same task in another column: a subset and the whole have common prompts.
    """
    cells: list[ResultCell | None] = []
    for i, (column, cell) in enumerate(zip(columns, row.cells, strict=True)):
        others = [
            had
            for j, had in enumerate(baseline.cells)
            if j != i and columns[j].task == column.task and had is not None
        ]
        same = baseline.cells[i]
        tried = [same] if same is not None and same.value is not None else [*others, same]
        cells.append(None if cell is None else _pair_best(column.task, cell, tried, names))
    return replace(row, cells=cells)


def _pair_best(
    task: str, cell: ResultCell, tried: Sequence[ResultCell | None], names: tuple[str, str]
) -> ResultCell:
    """Return a cell paired with that of the baseline with which it has the most common prompts."""
    found = [_pair(task, cell, had, names) for had in tried]
    return max(found, key=lambda one: (one.difference is not None, one.pairs or 0))


def _pair(
    task: str, cell: ResultCell, had: ResultCell | None, names: tuple[str, str]
) -> ResultCell:
    """Return a cell with its difference from another on the same prompts, or with none.

    What was found against the registered reference is left out.
    """
    bare = _forget(cell)
    bare = replace(
        bare,
        reference=None if had is None else had.value,
        reference_name=names[0],
        draws=tuple(map(_forget, cell.draws)),
    )
    for one, whose in ((cell, ""), (had, "the baseline: ")):
        if one is None:
            return replace(bare, no_difference="the baseline did not run this task")
        if one.value is None or not one.whole:
            why = one.no_difference or one.reason or one.outcome.value
            return replace(bare, no_difference=f"{whose}{why}")
    assert had is not None
    if cell.answered and cell.answered == had.answered:
        return replace(bare, no_difference="the same answers as those of the baseline, a copy")
    try:
        return _measure_difference(task, bare, had, names)
    except ServeEvalError as error:
        return replace(bare, no_difference=str(error))


def _forget(cell: ResultCell) -> ResultCell:
    """Return a cell without what was found against the registered reference."""
    return replace(
        cell,
        reference=None,
        difference=None,
        difference_interval=None,
        no_difference="",
        margin=None,
        inflation=1.0,
        run_effect="",
        p=None,
        p_rise=None,
        p_rule=None,
        p_holm=None,
        tests=None,
        q=None,
        finding="",
        proven="",
    )


def _measure_difference(
    task: str, cell: ResultCell, had: ResultCell, names: tuple[str, str]
) -> ResultCell:
    """Return a cell with its difference. Raises ServeEvalError if the runs cannot be paired."""
    from serve_eval.stats.judgement import judge

    drawn = match_draws(had, cell)
    sides = [[_read(task, one.run) for one in runs] for runs in (drawn.before, drawn.after)]
    a, b = (pool(side) for side in sides)
    if differing := list_mismatches(a, b):
        raise ServeEvalError(f"the baseline was asked otherwise: {', '.join(differing)} differ")
    if (kind := b.task.result.aggregation) != MEAN.name:
        raise ServeEvalError(f"the value is the {kind}, not the mean of the scores")
    whole = a
    a, b, prompts = keep_common(a, b)
    pairs = score_pairs(a, b)
    told = judge(pairs, margin=0.0)
    turned = judge(score_pairs(b, a), margin=0.0)
    scale = a.task.result.metric.scale
    ends = told.interval.lower, told.interval.upper
    finite = all(abs(end) != float("inf") for end in ends)
    if a is not whole:
        cell = replace(cell, pairs=prompts)
    if a is not whole or drawn.seeds:
        cell = replace(cell, reference=scale * _average(a))
    if drawn.seeds:
        cell = replace(
            cell,
            value=scale * _average(b),
            interval=None,
            seeds=drawn.seeds,
            **_account(drawn.after, b),
            draws=_compare_draws(drawn, sides),
        )
    return replace(
        cell,
        difference=scale * told.test.mean,
        inflation=1.0 if told.run_effect is None else told.run_effect.inflation,
        run_effect=_explain_run_effect(pairs, names),
        difference_interval=(scale * ends[0], scale * ends[1]) if finite else None,
        p=told.test.p,
        p_rise=turned.test.p,
    )


def _explain_run_effect(pairs: Pairs, names: tuple[str, str]) -> str:
    """Return a note that the runs of the side that inflates the errors differ as a whole."""
    from serve_eval.stats.repeats import effect_of

    weights = pairs.weights if pairs.weighted else None
    sides = zip(names, (pairs.reference, pairs.candidate), strict=True)
    effects = [(name, effect_of(runs, weights, pairs.clusters)) for name, runs in sides]
    found = [(name, one) for name, one in effects if one is not None and one.inflation > 1.0]
    if not found:
        return ""
    name, most = max(found, key=lambda one: one[1].inflation)
    return describe_run_effect(name, most.q, most.p, most.inflation)


def _read(task: str, run: str) -> TaskAnswers:
    report = read_report(Path(run))
    answers = read_task(Path(run), report, task)
    return replace(answers, task=drop_settings(answers.task, report.plan))


def _average(answers: TaskAnswers) -> float:
    return statistics.fmean(line.value for lines in answers.lines for line in lines.values())


def _account(runs: Sequence[ResultCell], answers: TaskAnswers) -> dict[str, Any]:
    """Return the fields of a cell that say which runs and samples its figures are of."""
    scored, planned = sum(map(len, answers.lines)), answers.task.result.planned
    worst = find_worst(runs)
    return {
        "run": join_runs(runs),
        "scored": scored,
        "planned": planned,
        "failed": planned - scored,
        "repaired": sum(map(len, answers.doubted)),
        "estimate": False,
        "outcome": worst.outcome,
        "waived": worst.waived,
        "rule": worst.rule,
        "chosen": any(one.chosen for one in runs),
    }


def _compare_draws(
    drawn: MatchedDraws, sides: Sequence[Sequence[TaskAnswers]]
) -> tuple[ResultCell, ...]:
    """Return the draws of a row, with the difference of each seed that both sides have."""
    from serve_eval.stats.judgement import judge

    found = []
    for i, draw in enumerate(drawn.after):
        difference = None
        if drawn.common:
            a, b, _ = keep_common(sides[0][i], sides[1][i])
            mean = judge(score_pairs(a, b), margin=0.0).test.mean
            difference = a.task.result.metric.scale * mean
        found.append(replace(draw, difference=difference))
    return tuple(found)
