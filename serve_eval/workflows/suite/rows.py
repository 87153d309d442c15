"""Rank the rows of a suite, write their figures, and mark what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from serve_eval.report.ci_result import CiState, describe_drop
from serve_eval.report.run.conclusions import choose_state, pick_remarks
from serve_eval.report.summary.figures import ONE_SIDED, count, p_in_words, write_figure
from serve_eval.report.summary.headline import ORDER
from serve_eval.report.task_line import split_change
from serve_eval.schema import SuiteChanges, SuiteReport, SuiteRow, VerdictOutcome
from serve_eval.schema.verdict import OTHER_THRESHOLD
from serve_eval.stats.intervals import subtract
from serve_eval.verdicts import many_tests
from serve_eval.verdicts.many_tests import GATES
from serve_eval.verdicts.references.lookup import shorten

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
    return f"{'<' if row.higher_is_better else '>'} {_number(row, row.threshold)}"


def _p(value: float | None) -> str:
    return "-" if value is None else "<.0001" if value < 0.0001 else f"{value:.4f}"


def list_remarks(row: SuiteRow) -> list[str]:
    """Return what must be seen of a row even if it passed; a proven change is the suite's own."""
    proven = describe_proven(row)
    told = [line for line in pick_remarks(row.warnings) if not line.startswith("small_drop")]
    return [*([proven] if proven else []), *map(many_tests.say_in_words, told)]


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
    sign = 1.0 if row.higher_is_better else -1.0
    turned = None
    if interval is not None:
        ends = subtract(row.evaluated, interval, known, row.reference_interval)
        turned = (sign * ends[0], sign * ends[1])
    drop, *around = split_change(sign * (row.evaluated - known), turned, points=row.in_points)
    return describe_drop(value, shown, drop, around)


def choose_row_state(row: SuiteRow) -> CiState:
    """Return the state of a row for CI: what is waived does not fail."""
    return CiState.SKIPPED if row.waiver else choose_state(row.outcome, row.reasons)


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
    sides = f"{_number(row, row.evaluated)} against {_number(row, row.reference)}"
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
        side = "below" if row.higher_is_better else "above"
        return f"; it passes because classic fails only values {side} {_number(row, row.threshold)}"
    if row.margin is None:
        return ""
    default = " (the default)" if row.default_margin else ""
    unit = " points" if row.in_points else ""
    return (
        f"; it passes because a drop of the margin, {_number(row, row.margin)}{unit}{default}, is"
        " excluded"
    )


MOST_NAMED = 3
"""Rows of each kind that the line names."""


def find_changes(earlier: SuiteReport | None, now: SuiteReport) -> SuiteChanges | None:
    """Return the rows that an earlier report lacks or shows otherwise; None if there are none.

    Corrected p-values change with each row that is added, so that they alone are no change.
    """
    if earlier is None:
        return None
    had = {f"{row.run}/{row.task}": row for row in earlier.rows}
    have = {f"{row.run}/{row.task}": row for row in now.rows}
    changes = SuiteChanges(
        report_of=earlier.started_at,
        new=tuple(name for name in have if name not in had),
        changed={
            name: told
            for name, row in have.items()
            if name in had and (told := _compare(had[name], row))
        },
        gone=tuple(name for name in had if name not in have),
    )
    return changes if changes.new or changes.changed or changes.gone else None


def _compare(had: SuiteRow, row: SuiteRow) -> str:
    """Return what changed in a row, the verdict first; an empty text if nothing did."""
    said = {
        "": (describe_verdict(had), describe_verdict(row)),
        "by ": (had.rule, row.rule),
        "value ": (_show(had, had.evaluated), _show(row, row.evaluated)),
        "estimate ": (_show(had, had.estimate), _show(row, row.estimate)),
        "reference ": (_show(had, had.reference), _show(row, row.reference)),
        "limit ": (_show(had, had.threshold), _show(row, row.threshold)),
        "margin ": (_show(had, had.margin), _show(row, row.margin)),
        "failed ": (str(had.failed), str(row.failed)),
        "repaired ": (str(had.repaired), str(row.repaired)),
    }
    return next((f"{name}{old} to {new}" for name, (old, new) in said.items() if old != new), "")


def _show(row: SuiteRow, value: float | None) -> str:
    return "none" if value is None else write_figure(value, points=row.in_points)


def describe_changes(changes: SuiteChanges) -> str:
    """Return one line of bounded length about the changes, with the names of a few rows."""
    kinds = {
        "new": [*map(shorten, changes.new)],
        "changed": [f"{shorten(name)} ({told})" for name, told in changes.changed.items()],
        "gone": [*map(shorten, changes.gone)],
    }
    found = {kind: names for kind, names in kinds.items() if names}
    first, *more = ((kind, len(names)) for kind, names in found.items())
    verb = "" if first[0] == "changed" else "is " if first[1] == 1 else "are "
    counts = [f"{count(first[1], 'row')} {verb}{first[0]}", *(f"{n} {kind}" for kind, n in more)]
    named = "; ".join(f"{kind}: {_name(names)}" for kind, names in found.items())
    return f"{', '.join(counts)} since the report of {_write_time(changes.report_of)}: {named}"


def _name(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"


def _write_time(stored: str) -> str:
    """Return when a report began as day and minute in UTC; a time that is none stays."""
    try:
        return f"{datetime.fromisoformat(stored).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return shorten(stored)
