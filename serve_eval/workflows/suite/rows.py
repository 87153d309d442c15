"""Rank the rows of a suite, and write their figures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from serve_eval.report.ci.ci_result import CiState
from serve_eval.report.one_line import describe_drop
from serve_eval.report.run.cases import choose_state, pick_remarks
from serve_eval.report.summary.figures import count, write_figure
from serve_eval.report.summary.table import ORDER
from serve_eval.report.task_line import split_change
from serve_eval.schema import SuiteReport, SuiteRow, VerdictOutcome
from serve_eval.schema.verdict import OTHER_THRESHOLD
from serve_eval.stats.own_noise import subtract
from serve_eval.verdicts import two_rules
from serve_eval.verdicts.many_tests import GATES
from serve_eval.workflows.suite.proven import describe_proven, describe_verdict

_SHOWN = (VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE)
"""Outcomes after which the answers of a run are worth a look."""


def describe_counts(report: SuiteReport) -> str:
    """Return how many tasks had which verdict, the worst first."""
    counts = Counter(describe_verdict(row) for row in sorted(report.rows, key=rank))
    counted = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return f"{count(len(report.runs), 'run')}, {count(len(report.rows), 'task')}: {counted}"


def find_worst_fail(report: SuiteReport) -> SuiteRow | None:
    """Return the first failing row that no waiver covers, in the order of the table."""
    rows = sorted(report.rows, key=rank)
    failing = (r for r in rows if r.outcome is VerdictOutcome.FAIL and r.waiver is None)
    return next(failing, None)


def find_worth_a_look(rows: Sequence[SuiteRow]) -> SuiteRow | None:
    """Return the row whose answers to read first; None if nothing is wrong.

    It is the worst FAIL, else the largest proven drop that passes or is undecided, else the first
    that is undecided. What is waived comes last.
    """
    told = [row for row in rows if row.outcome in _SHOWN or row.proven == "drop"]

    def order(row: SuiteRow) -> tuple[bool, bool, bool, float]:
        failed = row.outcome is VerdictOutcome.FAIL
        return row.waiver is not None, not failed, row.proven != "drop", _rank_drop(row)

    return min(told, key=order, default=None)


def rank(row: SuiteRow) -> tuple[int, bool, int, float]:
    """Return a sort key: the worst outcome first, a waived one after its like, a drop before.

    Of proven drops the largest is first.
    """
    direction = ("drop", "", "rise").index(row.proven)
    return ORDER.index(row.outcome), row.waiver is not None, direction, _rank_drop(row)


def _rank_drop(row: SuiteRow) -> float:
    """Return the change of a proven drop, which is negative; other rows keep their order."""
    return row.difference or 0.0 if row.proven == "drop" else 0.0


def list_texts(row: SuiteRow, attributes: Sequence[str], *, tested: bool) -> list[str]:
    """Return the cells of a row: verdict, run, attributes, task, value, interval, reference, limit.

    With `tested`, its p-values follow; p holm only where it decides the verdict.
    """
    holm = row.p_holm if row.rule in GATES else None
    tests = [_p(row.p), _p(holm), _p(row.q_bh)] if tested else []
    return [
        describe_verdict(row),
        row.run,
        *(str(row.attributes.get(name, "-")) for name in attributes),
        row.task,
        show_value(row),
        "-" if row.interval is None else _span(row, row.interval),
        _number(row, row.reference),
        _limit(row),
        *tests,
    ]


def show_value(row: SuiteRow) -> str:
    """Return the value or, if answers are missing, the range of possible values."""
    if row.failed and row.bounds is not None:
        return _span(row, row.bounds)
    return _number(row, row.evaluated) if row.estimate is None else f"~{_number(row, row.estimate)}"


def _span(row: SuiteRow, ends: tuple[float, float]) -> str:
    low, high = (_number(row, end) for end in ends)
    return low if low == high else f"{low} to {high}"


def _number(row: SuiteRow, value: float | None) -> str:
    return "-" if value is None else write_figure(value, points=row.in_points)


def _limit(row: SuiteRow) -> str:
    """Return the values that fail, or the rule if it is no comparison with a threshold."""
    if row.rule in OTHER_THRESHOLD or row.threshold is None:
        return "-" if row.rule == "none" or row.reference is None else row.rule
    below = row.higher_is_better
    if below is None:  # a file of an older version
        below = row.reference is None or row.threshold <= row.reference
    return f"{'<' if below else '>'} {_number(row, row.threshold)}"


def _p(value: float | None) -> str:
    return "-" if value is None else "<.0001" if value < 0.0001 else f"{value:.4f}"


def list_remarks(row: SuiteRow) -> list[str]:
    """Return what must be seen of a row even if it passed; a proven change is the suite's own."""
    proven = describe_proven(row)
    told = [line for line in pick_remarks(row.warnings) if not line.startswith("small_drop")]
    return [*([proven] if proven else []), *map(two_rules.say_in_words, told)]


def describe_figures(row: SuiteRow) -> str:
    """Return the value against the reference, with the drop and its interval.

    A reference whose number of samples is not known is taken as exact.
    """
    value = show_value(row)
    if value == "-":
        return ""
    known, interval = row.reference, row.interval
    if known is None:
        return describe_drop(value, "")
    shown = write_figure(known, points=row.in_points)
    if row.evaluated is None or row.failed:
        return describe_drop(value, shown)
    if row.difference is not None and row.difference_interval is not None:
        pairs = row.difference, row.difference_interval
        drop, *around = split_change(*pairs, points=row.in_points)
        return describe_drop(value, shown, drop, around)
    sign = -1.0 if row.higher_is_better is False else 1.0
    turned = None
    if interval is not None:
        ends = subtract(row.evaluated, interval, known, row.reference_interval)
        turned = (sign * ends[0], sign * ends[1])
    drop, *around = split_change(sign * (row.evaluated - known), turned, points=row.in_points)
    return describe_drop(value, shown, drop, around)


def choose_row_state(row: SuiteRow) -> CiState:
    """Return the state of a row for CI: what is waived does not fail."""
    return CiState.SKIPPED if row.waiver else choose_state(row.outcome, row.reasons)
