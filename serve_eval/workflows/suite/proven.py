"""Say which rows of a suite have a proven change that is no FAIL, with its figures. Pure."""

from __future__ import annotations

from serve_eval.report.summary.figures import ONE_SIDED, p_in_words, write_figure
from serve_eval.report.task_line import split_change
from serve_eval.schema import SuiteRow, VerdictOutcome


def is_marked(row: SuiteRow) -> bool:
    """Return True if a proven change needs words next to the verdict; a FAIL says it itself."""
    return bool(row.proven) and row.outcome is not VerdictOutcome.FAIL and row.waiver is None


def describe_verdict(row: SuiteRow) -> str:
    """Return the verdict: "PASS", "PASS (drop)" with a proven drop, "FAIL (waived)"."""
    if row.waiver is not None:
        return f"{row.own.value} (waived)"
    if row.outcome is not row.own:
        return f"{row.outcome.value} (alone: {row.own.value})"
    return f"{row.outcome.value} ({row.proven})" if is_marked(row) else row.outcome.value


def describe_proven(row: SuiteRow) -> str:
    """Return the proven change of a row with its figures, and why it passes; "" without one."""
    if not is_marked(row) or row.difference is None:
        return ""
    points = row.in_points
    moved, *ends = split_change(row.difference, row.difference_interval, points=points)
    around = f" ({' to '.join(ends)}, 95 %)" if ends else ""
    known = row.evaluated is not None and row.reference is not None
    sides = f"{_write(row, row.evaluated)} against {_write(row, row.reference)}"
    values = f", {sides}" if known else ""
    p = row.p if row.proven == "drop" else row.p_rise
    tests = "" if p is None else f", {p_in_words(p)}"
    if row.proven_p is not None:
        tests += f", Holm {p_in_words(row.proven_p).removeprefix(ONE_SIDED)}"
    return f"a {row.proven} is proven: {moved}{around}{values}{tests}{_say_why(row)}"


def _say_why(row: SuiteRow) -> str:
    """Return why a proven drop passes, with the limit."""
    if row.outcome is not VerdictOutcome.PASS or row.proven == "rise":
        return ""
    if row.rule == "classic":
        if row.threshold is None:
            return ""
        side = "above" if row.higher_is_better is False else "below"
        return f"; it passes because classic fails only values {side} {_write(row, row.threshold)}"
    if row.margin is None:
        return ""
    default = " (the default)" if row.default_margin else ""
    unit = " points" if row.in_points else ""
    return (
        f"; it passes because a drop of the margin, {_write(row, row.margin)}{unit}{default}, is"
        " excluded"
    )


def _write(row: SuiteRow, value: float | None) -> str:
    return "-" if value is None else write_figure(value, points=row.in_points)
