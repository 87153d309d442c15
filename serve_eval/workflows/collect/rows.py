"""The rows of collected results, and their form as CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, fields

from serve_eval.report.spreadsheet import disarm


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedRow:
    """One task of one run or test. The fields are the columns, in this order; None is empty.

    `kind` is run, trtllm-test or trtllm-eval. Values, `low` and `high` (95 %), reference, threshold
    and theta are in points, or in the unit of the task's metric.
    """

    source: str
    kind: str
    test: str | None = None
    model: str | None = None
    task: str | None = None
    verdict: str | None = None
    metric: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reference: float | None = None
    threshold: float | None = None
    theta: float | None = None
    alpha: float | None = None
    beta: float | None = None
    sigma: float | None = None
    num_samples: int | None = None
    planned: int | None = None
    scored: int | None = None
    failed: int | None = None
    truncated: int | None = None
    rule: str | None = None
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    base_url: str | None = None
    server_version: str | None = None
    started_at: str | None = None
    wall_s: float | None = None


COLUMNS = tuple(field.name for field in fields(CollectedRow))


def write_csv(rows: Iterable[CollectedRow]) -> str:
    """Return rows as CSV with a header. No cell is a formula; numbers stay numbers."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for row in rows:
        out.writerow([_write_cell(getattr(row, name)) for name in COLUMNS])
    return text.getvalue()


def _write_cell(value: str | int | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    line = value.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if disarm(value) != value else line
