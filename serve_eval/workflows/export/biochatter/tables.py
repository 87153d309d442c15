"""Aggregate rows into BioChatter's tables. Pure.

Three of BioChatter's published aggregation bugs are avoided: the median of a model is that of its
tasks and not of its tasks and their mean; its SD is that of its tasks and not of tasks, mean and
median; and an older row, which has the mean of its iterations, counts once for each iteration in
every table, and not only in those by task.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TASK_COLUMNS = (
    "Full model name",
    "Score achieved",
    "Score possible",
    "Score SD",
    "Accuracy",
    "Iterations",
)
SUMMARY = ("Mean Accuracy", "Median Accuracy", "SD")


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
