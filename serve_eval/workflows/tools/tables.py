"""Make the tables of a check of tools: passes, kinds of requests, and errors. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.schema import ToolCell, ToolCheck
from serve_eval.scorers._call_faults import CallFault

ToolTable = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The names of the columns, and the rows."""


def tabulate_passes(found: ToolCheck) -> ToolTable:
    """Return a row for each pass."""
    names = ("form", "load", "sound (95 %)", "failed", "prec.", "recall", "F1", "tokens", "s")
    rows = [
        [
            one.form,
            str(one.load),
            _share(one),
            str(one.failed),
            *("-" if x is None else f"{x:.3f}" for x in (one.precision, one.recall, one.f1)),
            str(one.prompt_tokens + one.completion_tokens),
            f"{one.wall_s:.1f}",
        ]
        for one in found.cells
    ]
    return names, rows


def tabulate_kinds(found: ToolCheck) -> ToolTable:
    """Return the percentage without an error by kind of request, with a column for each pass."""
    rows = []
    for kind in found.kinds:
        counts = [one.kinds.get(kind, (0, 0)) for one in found.cells]
        shown = [f"{100 * sound / n:.0f}" if n else "-" for sound, n in counts]
        rows.append([kind, str(max((n for _, n in counts), default=0)), *shown])
    return ("sound, %", "n", *map(_shorten, found.cells)), rows


def tabulate_faults(found: ToolCheck) -> ToolTable:
    """Return the number of answers with each error, with a column for each pass."""
    rows = [
        [fault.value, *(str(one.faults.get(fault.value, 0)) for one in found.cells)]
        for fault in CallFault
        if any(one.faults.get(fault.value) for one in found.cells)
    ]
    return ("errors", *map(_shorten, found.cells)), rows


def _share(one: ToolCell) -> str:
    if one.interval is None:
        return "-"
    low, high = one.interval
    return f"{100 * one.sound / one.scored:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def _shorten(one: ToolCell) -> str:
    return f"{one.form[0]}{one.load}"
