"""Make the document of collected results: the file, its rows, and what was left out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.report.ci import CiCase, CiState, CiSuite
from serve_eval.report.document import Conclusion, Document, Statement, make_header, rank_outcome
from serve_eval.report.summary.figures import count
from serve_eval.shell_words import quote_path
from serve_eval.verdicts.exit_code import NOTHING_SCORED
from serve_eval.verdicts.exit_code import PASS as FOUND
from serve_eval.workflows.collect.rows import CollectedRow

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
        story="collect",
        command=f"serve-eval runs table {' '.join(map(quote_path, paths))}",
        header=make_header(FOUND if rows else NOTHING_SCORED),
        conclusions=[
            Conclusion(
                name=str(output) if output is not None else "results",
                outcome=WRITTEN if rows else NOTHING,
                figures=_count(rows),
                cause=cause,
                statements=[
                    Statement(label="verdicts", text=", ".join(f"{n} {one}" for one, n in shown))
                ]
                if rows
                else [],
            )
        ],
        warnings=[line.removeprefix(WARNING) for line in warnings],
        commands=_list_next(rows, paths),
        suites=[CiSuite(name="serve-eval runs table", cases=list(map(_make_case, rows)))]
        if rows
        else [],
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
        group=row.source,
        name=row.test or row.task or row.kind,
        state=_STATES.get(_judge(row), CiState.SKIPPED),
        message=row.reason or "",
    )
