"""Say which sampling seeds of a table gave the same texts, so that they are one draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evidence.agreement.answer_pairs import read_task
from serve_eval.report.results_table import DeploymentRow, ResultCell, TaskColumn
from serve_eval.report.results_table.cell import name_seeds
from serve_eval.storage.reports.report_file import read_report


def explain_equal_seeds(
    columns: Sequence[TaskColumn], rows: Sequence[DeploymentRow]
) -> Iterator[str]:
    """Yield the tasks with seeds whose answers are equal texts.

    Answers are read only where the values of all seeds are equal.
    """
    for i, column in enumerate(columns):
        cells = [cell for row in rows if (cell := row.cells[i]) is not None]
        for seeds in dict.fromkeys(
            name_seeds(cell.averaged) for cell in cells if _is_one_draw(column.task, cell)
        ):
            yield (
                f"{column.heading}: the answers with sampling seeds {seeds} are the same texts:"
                " they are one draw, and their sd measures no uncertainty"
            )


def _is_one_draw(task: str, cell: ResultCell) -> bool:
    known = cell.averaged
    if len(known) < 2 or len({one.value for one in known}) > 1:
        return False
    try:
        first, *others = (_hash_answers(task, Path(one.run)) for one in known)
    except ServeEvalError:  # the folder keeps no answers, or they are damaged
        return False
    return bool(any(first)) and all(one == first for one in others)


def _hash_answers(task: str, run: Path) -> tuple[dict[str, bytes], ...]:
    return tuple(dict(said) for said in read_task(run, read_report(run), task).said)
