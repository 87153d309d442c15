"""Say which rows of a suite are new or changed since the last report of its folder. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from serve_eval.report.summary.figures import count, write_figure
from serve_eval.schema import SuiteChanges, SuiteReport, SuiteRow
from serve_eval.verdicts.references.deployed import shorten
from serve_eval.workflows.suite.proven import describe_verdict

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
