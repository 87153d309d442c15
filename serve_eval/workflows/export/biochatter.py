"""Export runs as the result files and tables of BioChatter's benchmark.

<task>.csv                the scores of each case, in the seven columns of BioChatter
<task>_failure_modes.csv  each iteration that is not right
<task>_confidence.csv     stated confidences, if a scorer reads them
processed/<task>.csv      a row for each model; <task>_by_subtask.csv the same for each subtask
processed/overview.csv    models by tasks, with mean, median and SD of the tasks

Three of BioChatter's published aggregation bugs are avoided: the median of a model is that of its
tasks and not of its tasks and their mean; its SD is that of its tasks and not of tasks, mean and
median; and an older row, which has the mean of its iterations, counts once for each iteration in
every table, and not only in those by task.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET

from serve_eval import __version__
from serve_eval.cases.biochatter import read
from serve_eval.errors import RunFolderError
from serve_eval.frozen import freeze
from serve_eval.plugins.scope import with_scope
from serve_eval.report.samples.known import prepare_again
from serve_eval.report.summary import name_expected
from serve_eval.report.text import disarm
from serve_eval.schema import HOLDOUT, Outcome, Report, Sample, TaskReport, file_stem
from serve_eval.series.deployments import name_deployments
from serve_eval.series.measured_runs import read_measured
from serve_eval.storage.json_files import write_private
from serve_eval.storage.scores import ScoreRecord, score_records
from serve_eval.verdicts.reference_noise import describe_one_draw
from serve_eval.workflows.export import Exported

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
    more: Sequence[Path],
    include_path: Sequence[str],
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


CONFIDENCE = "confidence"
"""The part of a score that holds the confidence which an answer states, if its scorer reads it."""
HIDDEN = "(of a hold-out set)"


@freeze
class CaseRow:
    """The scores of one case of a task by one model, one for each iteration that has a score.

    `md5` is BioChatter's key of a case; for a sample that is no case, it is the MD5 of its id.
    """

    model: str
    task: str
    subtask: str
    md5: str
    date: str
    scores: tuple[float, ...]
    records: tuple[ScoreRecord, ...] = ()
    hidden: bool = False

    @property
    def score(self) -> str:
        """The scores as BioChatter writes them: "1.0;0.5/1"."""
        return f"{';'.join(f'{one:.10g}' for one in self.scores)}/1"

    def list_cells(self) -> list[str]:
        """Return the row of the result file."""
        iterations = str(len(self.scores))
        return [
            self.model,
            self.subtask,
            self.score,
            iterations,
            self.md5,
            self.date,
            f"serve-eval {__version__}",
        ]

    def list_failures(self) -> Iterator[list[str]]:
        """Yield a row for each iteration that is not right, not for the last one alone."""
        for record in self.records:
            if record.outcome is Outcome.CORRECT:
                continue
            mode = record.outcome.value if record.mode is UNSET else str(record.mode)
            expected = HIDDEN if self.hidden else disarm(name_expected(self.task, record.target))
            actual = HIDDEN if self.hidden else disarm(record.answer or "")
            yield [self.model, self.subtask, actual, expected, mode, self.md5, self.date]

    def list_confidences(self) -> list[str] | None:
        """Return the stated confidences of right and of wrong answers, or None without one."""
        right: list[str] = []
        wrong: list[str] = []
        for record in self.records:
            if CONFIDENCE in record.parts:
                side = right if record.outcome is Outcome.CORRECT else wrong
                side.append(f"{record.parts[CONFIDENCE]:.10g}")
        if not right and not wrong:
            return None
        return [self.model, self.subtask, ";".join(right), ";".join(wrong), self.md5, self.date]


def read_rows(
    run: Path, report: Report, task: TaskReport, model: str, include_path: Sequence[str]
) -> tuple[list[CaseRow], int]:
    """Return the rows of a task of a run, and how many answers have no score.

    `model` is the name under which they stand.
    Raises ServeEvalError if the task's data is not on this machine or its scores cannot be read.
    """
    samples = {
        sample.id: sample
        for sample in prepare_again(report.plan, task.spec, include_path).dataset.samples
    }
    by_sample: dict[str, list[ScoreRecord]] = defaultdict(list)
    for record in score_records(run, task.result.task, unfinished=True):
        by_sample[_strip_repeat(record.id, samples)].append(record)
    lo, hi = task.result.metric.lo or 0.0, task.result.metric.hi or 1.0
    rows = []
    for name, records in by_sample.items():
        sample = samples.get(name)
        metadata = {} if sample is None else sample.metadata
        rows.append(
            CaseRow(
                model=model,
                task=task.result.task,
                subtask=metadata.get("case", name),
                md5=metadata.get("compat_md5")
                or hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(),
                date=report.started_at[:19].replace("T", " "),
                scores=tuple((one.value - lo) / (hi - lo) for one in records),
                records=tuple(records),
                hidden=HOLDOUT in metadata,
            )
        )
    rows.sort(key=lambda row: (row.model, row.subtask, row.md5))
    return rows, task.result.planned - sum(len(row.scores) for row in rows)


def _strip_repeat(name: str, samples: Mapping[str, Sample]) -> str:
    """Return the id of the sample that a repeat asks again."""
    head, mark, number = name.rpartition("#")
    return head if mark and number.isdigit() and name not in samples else name


TASK_COLUMNS = (
    "Full model name",
    "Score achieved",
    "Score possible",
    "Score SD",
    "Accuracy",
    "Iterations",
)
SUMMARY = ("Mean Accuracy", "Median Accuracy", "SD")


@freeze
class CaseScores:
    """The scores of a case by a model, as shares of its points.

    An older row has one score, the mean of `iterations`.
    """

    model: str
    subtask: str
    scores: tuple[float, ...]
    iterations: int

    @property
    def achieved(self) -> float:
        """The sum of the scores over all iterations."""
        return math.fsum(self.scores) / len(self.scores) * self.iterations

    @property
    def sd(self) -> float:
        """The standard deviation of the scores; 0 if there is only one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0


@freeze
class ModelRow:
    """One model in the table of a task or of a subtask."""

    model: str
    achieved: float
    possible: int
    sd: float
    iterations: int

    @property
    def accuracy(self) -> float:
        return self.achieved / self.possible

    def list_cells(self) -> list[str]:
        """Return the row of the file."""
        figures = (self.achieved, self.possible, self.sd, self.accuracy, self.iterations)
        return [self.model, *(f"{one:.10g}" for one in figures)]


def tabulate_task(cases: Iterable[CaseScores]) -> list[ModelRow]:
    """Return a row for each model, the most accurate first. The SD is the sum of those of cases."""
    by_model: dict[str, list[CaseScores]] = defaultdict(list)
    for case in cases:
        by_model[case.model].append(case)
    rows = [
        ModelRow(
            model=model,
            achieved=math.fsum(case.achieved for case in of_model),
            possible=sum(case.iterations for case in of_model),
            sd=math.fsum(case.sd for case in of_model),
            iterations=max(case.iterations for case in of_model),
        )
        for model, of_model in by_model.items()
    ]
    return sorted(rows, key=lambda row: (-row.accuracy, row.model))


def split_subtasks(cases: Iterable[CaseScores]) -> dict[str, list[CaseScores]]:
    """Return the cases by the second field of their names, if it differs; else none."""
    found: dict[str, list[CaseScores]] = defaultdict(list)
    for case in cases:
        fields = case.subtask.split(":")
        found[fields[1] if len(fields) > 1 else ""].append(case)
    found.pop("", None)
    return dict(found) if len(found) > 1 else {}


@freeze
class OverviewRow:
    """One model over all tasks: its accuracies (None: not measured), and their mean, median, SD."""

    model: str
    accuracies: tuple[float | None, ...]
    mean: float
    median: float
    sd: float | None

    def list_cells(self) -> list[str]:
        """Return the row of the file; a figure that is not known is empty."""
        figures = (*self.accuracies, self.mean, self.median, self.sd)
        return [self.model, *("" if one is None else f"{one:.10g}" for one in figures)]


def make_overview(tables: Mapping[str, Sequence[ModelRow]]) -> list[OverviewRow]:
    """Return a row for each model over the tables of all tasks, the highest median first."""
    accuracies: dict[str, dict[str, float]] = defaultdict(dict)
    for task, rows in tables.items():
        for row in rows:
            accuracies[row.model][task] = row.accuracy
    found = []
    for model, by_task in accuracies.items():
        known = list(by_task.values())
        found.append(
            OverviewRow(
                model=model,
                accuracies=tuple(by_task.get(task) for task in tables),
                mean=statistics.fmean(known),
                median=statistics.median(known),
                sd=statistics.stdev(known) if len(known) > 1 else None,
            )
        )
    return sorted(found, key=lambda row: (-row.median, row.model))
