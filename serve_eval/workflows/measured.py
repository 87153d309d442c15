"""Measure what helps to plan the next run: the spread of scores and the throughput of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage import sessions
from serve_eval.evaluation.storage.records.scores import read_values
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.schema import MEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one task.

    `sigma` is the standard deviation of its scores in points, `bernoulli` that of right-or-wrong
    scores with the same mean. `per_second` is the number of samples per second in the last session
    (None: not known).
    """

    task: str
    n: int
    value: float
    sigma: float
    bernoulli: float
    per_second: float | None


def measure_run(run: Path) -> list[Measured]:
    """Return the measurements of the tasks of a run folder.

    Raises RunFolderError if the run has no report or no score, or if the value of a task is not a
    mean of scores: the spread of the scores then says nothing about the spread of the value.
    """
    report, loads = read_report(run), sessions.loads(run)
    rate = loads[-1].finished / loads[-1].wall_s if loads and loads[-1].wall_s else None
    found = []
    for task in report.tasks:
        name, scale, how = task.result.task, task.result.metric.scale, task.result.aggregation
        if how != MEAN.name:
            raise RunFolderError(
                f"{run}: {name} is the {how} of its scores, not their mean: its spread is not known"
            )
        values = [scale * value for value in read_values(run, name).values()]
        if not values:
            raise RunFolderError(f"{run}: {name} has no score")
        mean = math.fsum(values) / len(values)
        share = mean / scale if scale else 0.0
        found.append(
            Measured(
                task=name,
                n=len(values),
                value=mean,
                sigma=math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
                bernoulli=abs(scale) * math.sqrt(max(0.0, share * (1.0 - share))),
                per_second=rate,
            )
        )
    return found
