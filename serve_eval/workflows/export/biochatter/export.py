"""Write runs as the files of BioChatter's benchmark.

<task>.csv                the scores of each case, in the seven columns of BioChatter
<task>_failure_modes.csv  each iteration that is not right
<task>_confidence.csv     stated confidences, if a scorer reads them
processed/<task>.csv      a row for each model; <task>_by_subtask.csv the same for each subtask
processed/overview.csv    models by tasks, with mean, median and SD of the tasks
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from serve_eval.cases.biochatter_rows import read
from serve_eval.errors import RunFolderError
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import file_stem
from serve_eval.series.deployments import name_deployments
from serve_eval.series.measured_runs import read_measured
from serve_eval.storage.json_files import write_private
from serve_eval.verdicts.one_draw import describe_one_draw
from serve_eval.workflows.export.biochatter.records import CaseRow, read_rows
from serve_eval.workflows.export.biochatter.tables import (
    SUMMARY,
    TASK_COLUMNS,
    CaseScores,
    make_overview,
    split_subtasks,
    tabulate_task,
)
from serve_eval.workflows.export.export import Exported

RESULT_COLUMNS = (
    "model_name",
    "subtask",
    "score",
    "iterations",
    "md5_hash",
    "datetime",
    "biochatter_version",
)
FAILURE_COLUMNS = (
    "model_name",
    "subtask",
    "actual_answer",
    "expected_answer",
    "failure_modes",
    "md5_hash",
    "datetime",
)
CONFIDENCE_COLUMNS = (
    "model_name",
    "subtask",
    "correct_confidence",
    "incorrect_confidence",
    "md5_hash",
    "datetime",
)
PROCESSED = "processed"


@with_scope
def export_biochatter(
    folders: Sequence[Path],
    to: Path,
    *,
    more: Sequence[Path] = (),
    include_path: Sequence[str] = (),
) -> Exported:
    """Write the files of all finished runs in or below some folders.

    Deployments of one model have names of their own. Of several runs of a deployment, the latest
    row of each case counts. `more` are result files of
    BioChatter that the tables also hold, each for the task of its name. Raises ServeEvalError for
    runs, data or files that cannot be read, and RunFolderError if a file cannot be written.
    """
    runs, notes = read_measured(folders)
    by_task: dict[str, dict[tuple[str, str], CaseRow]] = defaultdict(dict)
    for model, run in zip(name_deployments(runs), runs, strict=True):
        report = run.report
        for task in report.tasks if report else ():
            name, metric = task.result.task, task.result.metric
            if metric.lo is None or metric.hi is None:
                notes.append(f"{name}: left out, since its scores have no bounds")
                continue
            assert report is not None
            rows, missing = read_rows(run.folder, report, task, model, include_path)
            by_task[name].update({(row.model, row.md5): row for row in rows})
            if drawn := describe_one_draw(task.result.stability):
                notes.append(f"{run.folder}: {name}: {drawn}")
            if missing > 0:
                notes.append(f"{run.folder}: {name}: {missing} answers without a score")
    try:
        (to / PROCESSED).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{to}: cannot write: {error.strerror}", hint="Choose another with -o."
        ) from error
    files: dict[Path, int] = {}
    cases: dict[str, list[CaseScores]] = {}
    for name, found in by_task.items():
        ordered = sorted(found.values(), key=lambda row: (row.model, row.subtask, row.md5))
        files |= _write_task(to, file_stem(name), ordered)
        cases[file_stem(name)] = list(map(_scores, ordered))
    for file in more:
        cases.setdefault(file.stem, []).extend(
            CaseScores(
                model=row.model, subtask=row.subtask, scores=row.scores, iterations=row.iterations
            )
            for row in read(file)
        )
    files |= _write_tables(to / PROCESSED, cases)
    return Exported(files=tuple(files), rows=files, notes=tuple(notes))


def _scores(row: CaseRow) -> CaseScores:
    return CaseScores(
        model=row.model, subtask=row.subtask, scores=row.scores, iterations=len(row.scores)
    )


def _write_task(to: Path, name: str, rows: Sequence[CaseRow]) -> dict[Path, int]:
    """Write the result file of a task, and its failures and confidences if there are any.

    Return the files with their rows, as all functions here that write.
    """
    failures = [cells for row in rows for cells in row.list_failures()]
    confidences = [cells for row in rows if (cells := row.list_confidences()) is not None]
    tables = (
        (to / f"{name}.csv", RESULT_COLUMNS, [row.list_cells() for row in rows]),
        (to / f"{name}_failure_modes.csv", FAILURE_COLUMNS, failures),
        (to / f"{name}_confidence.csv", CONFIDENCE_COLUMNS, confidences),
    )
    written: dict[Path, int] = {}
    for file, columns, found in tables:
        written |= _write(file, columns, found) if found else {}
    return written


def _write_tables(to: Path, cases: dict[str, list[CaseScores]]) -> dict[Path, int]:
    """Write the tables of all tasks, of their subtasks, and the overview."""
    files: dict[Path, int] = {}
    tables = {name: tabulate_task(of_task) for name, of_task in cases.items()}
    for name, rows in tables.items():
        files |= _write(to / f"{name}.csv", TASK_COLUMNS, [row.list_cells() for row in rows])
        subtasks = split_subtasks(cases[name])
        if subtasks:
            cells = [
                [*row.list_cells(), subtask]
                for subtask, of_one in sorted(subtasks.items())
                for row in tabulate_task(of_one)
            ]
            columns = (*TASK_COLUMNS, "Subtask")
            files |= _write(to / f"{name}_by_subtask.csv", columns, cells)
    overview = [row.list_cells() for row in make_overview(tables)]
    heads = ("Full model name", *tables, *SUMMARY)
    return files | _write(to / "overview.csv", heads, overview)


def _write(file: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[Path, int]:
    """Write a CSV file."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_private(file, out.getvalue().encode(errors="backslashreplace"))
    return {file: len(rows)}
