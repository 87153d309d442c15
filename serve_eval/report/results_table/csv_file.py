"""Write a table of deployments by tasks as CSV (RFC 4180). Pure."""

from __future__ import annotations

import csv
import io

from serve_eval.report.results_table.cell import LEFT_OUT, UNPAIRED, ResultCell, name_seeds
from serve_eval.report.results_table.content import ResultsTable
from serve_eval.report.spreadsheet import disarm
from serve_eval.report.text import clean

FIGURES = (
    "value",
    "low",
    "high",
    "scored",
    "planned",
    "failed",
    "repaired",
    "estimate",
    "reference",
    "reference of",
    "difference",
    "difference low",
    "difference high",
    "p",
    "p holm",
    "q",
    "p table",
    "finding",
    "rule",
    "verdict",
    "waived",
    "run",
    "other runs",
    "no value because",
    "no difference because",
    "common prompts",
    "margin",
    "tests",
    "samples named",
    "sampling seeds",
    "mean over seeds",
    "sd over seeds",
    "verdicts of seeds",
    "error factor",
    "repeats",
    "pass at repeats",
    "vote",
)
"""The columns of each task, after its heading."""
DECIMALS = 10
"""Decimals of figures; a p-value has ten digits instead, since a small one is no rounding error."""
_REASONS = ("no value because", "no difference because")


def write_csv_table(table: ResultsTable) -> str:
    """Return a header and a row for each deployment, with every attribute that is known.

    Each task has the columns FIGURES. Numbers are not rounded; an empty cell is unknown. Lines end
    with CR LF.
    """
    names = list(dict.fromkeys(name for row in table.rows for name in row.attributes))
    text = io.StringIO(newline="")
    out = csv.writer(text, lineterminator="\r\n")
    heads = [f"{column.heading} {figure}" for column in table.columns for figure in FIGURES]
    out.writerow([_flatten(head) for head in ("model", *names, *heads)])
    for row in table.rows:
        attributes = [_flatten(row.attributes.get(name, "")) for name in names]
        cells = [one for cell in row.cells for one in _list_cells(cell)]
        out.writerow([_flatten(row.model), *attributes, *cells])
    return text.getvalue()


def _list_cells(cell: ResultCell | None) -> list[str]:
    if cell is None:
        return ["" if name not in _REASONS else LEFT_OUT for name in FIGURES]
    low, high = cell.interval or (None, None)
    least, most = cell.difference_interval or (None, None)
    tests = (cell.p, cell.p_holm, cell.q, cell.p_table)
    counts = (cell.scored, cell.planned, cell.failed, cell.repaired)
    return [
        *map(_write_number, (cell.value, low, high)),
        *("" if one is None else str(one) for one in counts),
        "yes" if cell.estimate else "no",
        _write_number(cell.reference),
        _flatten(cell.reference_name),
        *map(_write_number, (cell.difference, least, most)),
        *map(_write_p, tests),
        _flatten(cell.finding),
        _flatten(cell.rule),
        cell.outcome.value,
        "yes" if cell.waived else "no",
        _flatten(cell.run),
        str(cell.others),
        _flatten(cell.reason or cell.outcome.value) if cell.value is None else "",
        _flatten(cell.no_difference or UNPAIRED) if cell.difference is None else "",
        "" if cell.pairs is None else str(cell.pairs),
        _write_number(cell.margin),
        "" if cell.tests is None else str(cell.tests),
        "yes" if cell.chosen else "no",
        _flatten(cell.seeds or name_seeds(cell.averaged)),
        *map(_write_number, cell.over_seeds),
        _flatten("; ".join(f"{one.seed or 'none'} {one.outcome.value}" for one in cell.draws)),
        "" if cell.difference is None else _write_number(cell.inflation),
        str(cell.repeats),
        *map(_write_number, (cell.pass_at_repeats, cell.vote)),
    ]


def _write_number(number: float | None) -> str:
    """Return a figure without the dust of sums of floats, such as 5e-16 for 0."""
    return "" if number is None else f"{round(number, DECIMALS) + 0.0:.10g}"


def _write_p(number: float | None) -> str:
    return "" if number is None else f"{number:.10g}"


def _flatten(text: str) -> str:
    """Return a text on one line that no terminal and no spreadsheet runs."""
    return disarm(" ".join(clean(text).split()))
