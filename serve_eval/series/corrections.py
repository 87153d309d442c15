"""Correct the findings of a table for its many tests, and mark the proven differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from serve_eval.report.results_table import DeploymentRow, ResultCell, TaskColumn
from serve_eval.report.results_table.cell import UNJUDGED
from serve_eval.report.summary.figures import count, figure
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.many_tests import GATES, UNPROVEN

ALPHA = 0.05
"""Probability of any false finding among the runs of a table that belong to no suite."""


def correct_cells(rows: Iterable[DeploymentRow]) -> list[DeploymentRow]:
    """Return rows in which the findings of runs outside of suites are corrected by Holm together.

    The correction of a suite, which counts also the runs that a table lacks, stays as it is.
    Verdicts stay those of each run alone. The same answers in a copy of a run are one test.
    """
    listed = list(rows)
    tested = [one for row in listed for one in row.cells if one is not None and _is_tested(one)]
    alone = {one.answered or str(i): one for i, one in enumerate(tested)}
    drops = dict(zip(alone, holm([one.p_rule or 0.0 for one in alone.values()]), strict=True))
    rises = dict(zip(alone, holm([_find_rise(one) for one in alone.values()]), strict=True))
    names = (one.answered or str(i) for i, one in enumerate(tested))
    return [
        replace(
            row,
            cells=[
                one
                if one is None or not _is_tested(one)
                else _correct(one, drops[name := next(names)], rises[name], len(alone))
                for one in row.cells
            ],
        )
        for row in listed
    ]


def _is_tested(cell: ResultCell) -> bool:
    return not cell.in_suite and cell.p_rule is not None


def _find_rise(cell: ResultCell) -> float:
    return 1.0 if cell.p_rise is None else cell.p_rise


def _correct(cell: ResultCell, drop: float, rise: float, tests: int) -> ResultCell:
    corrected = replace(cell, p_holm=drop, tests=tests)
    if cell.finding in UNPROVEN and drop > ALPHA:
        return replace(corrected, finding=UNPROVEN[cell.finding], proven="")
    if cell.proven == "rise" and rise > ALPHA:
        return replace(corrected, proven="")
    return corrected


def describe_rules(columns: Sequence[TaskColumn], rows: Sequence[DeploymentRow]) -> Iterator[str]:
    """Yield each rule that judged, with its margin, and how many tests the corrections are over."""
    pairs = [
        (column, cell)
        for row in rows
        for column, cell in zip(columns, row.cells, strict=True)
        if cell is not None and cell.rule and cell.outcome not in UNJUDGED
    ]
    for rule, in_suite in dict.fromkeys((cell.rule, cell.in_suite) for _, cell in pairs):
        judged = [one for one in pairs if (one[1].rule, one[1].in_suite) == (rule, in_suite)]
        cells = [cell for _, cell in judged]
        tests = sorted({one.tests for one in cells if one.tests is not None})
        how = "not corrected for the number of tests"
        if in_suite and rule in GATES and tests:
            how = f"corrected by Holm over {_say_tests(tests)} of the suite"
        yield f"verdicts by {rule}{_say_margin(rule, judged)}, {how}"
        if tests and not (in_suite and rule in GATES):
            whose = "of the suite" if in_suite else "of this table"
            yield (
                f"findings and proven changes on the same prompts, of runs judged by {rule}: Holm"
                f" over {_say_tests(tests)} {whose}, one-sided"
            )
    if any(one.in_suite and one.p_rule is not None and one.p_holm is None for _, one in pairs):
        yield (
            "an older version left findings of a suite without a correction; they are empty until"
            " the suite is judged again"
        )


def _say_tests(numbers: Sequence[int]) -> str:
    *most, last = numbers
    return f"{', '.join(map(str, most))} and {last} tests" if most else count(last, "test")


def _say_margin(rule: str, judged: Sequence[tuple[TaskColumn, ResultCell]]) -> str:
    """Return the margins of a rule by unit: " with a margin of 2.0 points (the default)"."""
    units: dict[str, list[tuple[float, str]]] = {}
    for column, cell in judged:
        if cell.margin is not None:
            shown = figure(cell.margin, column.metric)
            units.setdefault(column.unit, []).append((cell.margin, shown))
    if not units:
        return ""
    margins = " and ".join(f"{_say_range(found)} {unit}" for unit, found in units.items())
    if rule == "classic":
        return f" with thresholds {margins} from the reference"
    default = " (the default)" if all(cell.default_margin for _, cell in judged) else ""
    return f" with a margin of {margins}{default}"


def _say_range(found: Sequence[tuple[float, str]]) -> str:
    (_, low), (_, high) = min(found), max(found)
    return low if low == high else f"{low} to {high}"


def add_stars(rows: list[DeploymentRow]) -> tuple[list[DeploymentRow], int]:
    """Return the rows with stars, and the number of tests.

    Twice the smaller p of both directions is two-sided. The interval must exclude 0 as well, since
    it holds missing answers at their best and worst. The same answers in a copy of a run are one
    test.
    """
    tested = [one for row in rows for one in row.cells if one is not None and _has_value(one)]
    alone = {one.answered or str(i): _find_p(one) for i, one in enumerate(tested)}
    adjusted = dict(zip(alone, holm(list(alone.values())), strict=True))
    names = (one.answered or str(i) for i, one in enumerate(tested))
    found = []
    for row in rows:
        cells = []
        for cell in row.cells:
            if cell is not None and _has_value(cell):
                p = adjusted[next(names)]
                cell = replace(cell, p_table=p, star=p <= ALPHA and _excludes_zero(cell))
            cells.append(cell)
        found.append(replace(row, cells=cells))
    return found, len(alone)


def _find_p(cell: ResultCell) -> float:
    return min(1.0, 2.0 * min(p for p in (cell.p, cell.p_rise) if p is not None))


def _has_value(cell: ResultCell) -> bool:
    return cell.difference is not None and cell.p is not None


def _excludes_zero(cell: ResultCell) -> bool:
    ends = cell.difference_interval
    return ends is not None and (ends[0] > 0.0 or ends[1] < 0.0)
