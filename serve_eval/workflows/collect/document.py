"""Show collected results as rows, as CSV or as a document."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.frozen import freeze
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Conclusion, Document, Statement, make_header, rank_outcome
from serve_eval.report.results_table.formats import DECIMALS
from serve_eval.report.summary.figures import count
from serve_eval.report.text import disarm
from serve_eval.shell_words import quote_path
from serve_eval.verdicts.exit_code import NOTHING_SCORED, PASS

Cell = str | int | float | None


@freeze
class CollectedRow:
    """One task of one run or test. The fields are the columns, in this order; None is empty.

    `kind` is run, trtllm-test or trtllm-eval. Values, `low` and `high` (95 %), reference,
    threshold, theta and margin are in points, or in the unit of the task's metric. `attributes` are
    the suite's words about the run; each has a column of its own. `verdict` and `p` are those of
    the run alone; `suite_verdict`, `p_holm` over `tests` tests and `finding` those of its suite,
    None outside of one. `sampling_seed` is None if the server draws its seeds. Of `repeats` answers
    to each prompt, `value` is the mean, `pass_at_repeats` pass@k with k = `repeats` in percent, and
    `vote` the value of the most frequent answers. `cut_value` is the value if all answers that were
    cut off had been right, `server_adds` the sampling fields that the server added to requests, and
    `effort` the reasoning effort that was asked for.
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
    margin: float | None = None
    suite_verdict: str | None = None
    p: float | None = None
    p_holm: float | None = None
    tests: int | None = None
    finding: str | None = None
    reason: str | None = None
    sampling_seed: int | None = None
    repeats: int | None = None
    sd_repeats: float | None = None
    pass_at_repeats: float | None = None
    vote: float | None = None
    cut_value: float | None = None
    server_adds: str | None = None
    effort: str | None = None
    attributes: Mapping[str, Cell] = field(default_factory=dict)


COLUMNS = tuple(one.name for one in fields(CollectedRow) if one.name != "attributes")


def write_csv(rows: Iterable[CollectedRow]) -> str:
    """Return rows as CSV with a header. No cell is a formula; numbers stay numbers.

    The attributes of all rows follow the columns. One with the name of a column is "NAME (suite)".
    """
    listed = list(rows)
    names = list(dict.fromkeys(name for row in listed for name in row.attributes))
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    heads = [f"{name} (suite)" if name in COLUMNS else name for name in names]
    out.writerow([*COLUMNS, *map(_write_cell, heads)])
    for row in listed:
        own = [_round(name, getattr(row, name)) for name in COLUMNS]
        told = [row.attributes.get(name) for name in names]
        out.writerow([*map(_write_cell, own), *map(_write_attribute, told)])
    return text.getvalue()


def _round(name: str, value: Cell) -> Cell:
    """Return a figure without the dust of sums of floats; a small p-value is none."""
    if isinstance(value, float) and name not in ("p", "p_holm"):
        return round(value, DECIMALS) + 0.0
    return value


def _write_attribute(value: Cell) -> str:
    """Return an attribute as the user wrote it: a number is not rounded."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else _write_cell(value)


def _write_cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    line = value.replace("\r", " ").replace("\n", " ")
    return f"'{line}" if disarm(value) != value else line


WRITTEN, NOTHING = "WRITTEN", "NOTHING FOUND"
RUN, WARNING = "run", "warning: "
_STATES = {
    "PASS": CiState.PASSED,
    "FAIL": CiState.FAILURE,
    "ERROR": CiState.ERROR,
}
"""States by verdict; any other one decided nothing."""


def make_document(
    rows: Sequence[CollectedRow],
    warnings: Sequence[str],
    paths: Sequence[Path],
    output: Path | None,
) -> Document:
    """Return the document of the rows that were found in `paths` and written to `output`."""
    verdicts = Counter(_judge(row) for row in rows)
    shown = sorted(verdicts.items(), key=lambda item: rank_outcome(item[0]))
    found = "could be read: see the warnings" if warnings else "was found"
    cause = "" if rows else f"no finished run and no result in a log {found}"
    return Document(
        "collect",
        f"serve-eval runs table {' '.join(map(quote_path, paths))}",
        make_header(PASS if rows else NOTHING_SCORED),
        conclusions=[
            Conclusion(
                str(output) if output is not None else "results",
                WRITTEN if rows else NOTHING,
                figures=_count(rows),
                cause=cause,
                statements=[Statement("verdicts", ", ".join(f"{n} {one}" for one, n in shown))]
                if rows
                else [],
            )
        ],
        warnings=[line.removeprefix(WARNING) for line in warnings],
        commands=_list_next(rows, paths),
        suites=[CiSuite("serve-eval runs table", list(map(_make_case, rows)))] if rows else [],
        result=output,
    )


def describe_rows(rows: Sequence[CollectedRow]) -> dict[str, Any]:
    """Return all cells, which a command prints as the result."""
    return {"schema_version": 1, "rows": msgspec.to_builtins(list(rows))}


def _judge(row: CollectedRow) -> str:
    """Return the verdict in the suite, else that of the run or test alone."""
    return row.suite_verdict or row.verdict or "NOT JUDGED"


def _count(rows: Sequence[CollectedRow]) -> str:
    """Return the number of rows, and of the runs and results of logs that they come from."""
    if not rows:
        return ""
    runs = len({row.source for row in rows if row.kind == RUN})
    logged = sum(row.kind != RUN for row in rows)
    told = [count(runs, "run")] if runs else []
    told += [count(logged, "result of a log", "results of logs")] if logged else []
    return f"{count(len(rows), 'row')} of {' and '.join(told)}"


def _list_next(rows: Sequence[CollectedRow], paths: Sequence[Path]) -> list[str]:
    """Return the command that prints the same runs as models by tasks."""
    runs = [Path(row.source) for row in rows if row.kind == RUN and row.value is not None]
    places = [path for path in paths if any(run.is_relative_to(path) for run in runs)]
    if not places:
        return []
    return [f"serve-eval runs export {' '.join(map(quote_path, places))} --format table"]


def _make_case(row: CollectedRow) -> CiCase:
    return CiCase(
        row.source,
        row.test or row.task or row.kind,
        state=_STATES.get(_judge(row), CiState.SKIPPED),
        message=row.reason or "",
    )
