"""Describe one task at one load: value, interval, failures, times, and where answers changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval.evaluation.agreement.answer_pairs import (
    TaskAnswers,
    another_answer,
    read_task,
    texts,
)
from serve_eval.evaluation.agreement.first_divergence import find_first_divergences, part
from serve_eval.schema import MEAN, FirstDivergences, LoadPoint, Report
from serve_eval.stats.tango import score_bounds
from serve_eval.stats.wilson import wilson
from serve_eval.workflows.load.judging import LoadData, change_p, count_changes

INTERVAL_ALPHA = 0.05
"""One minus the confidence of the interval of a value, and of the loss that is excluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPass:
    """A finished pass: its folder and report."""

    folder: Path
    report: Report

    def read_answers(self, task: str) -> TaskAnswers:
        """Return the answers to one task. Raises RunFolderError.

        A prompt whose first answer was lost counts as failed: at that load, its request failed.
        """
        return read_task(self.folder, self.report, task).without_doubted()


def describe_points(
    data: LoadData, passes: dict[int, LoadPass], again: LoadPass | None, task: str
) -> Sequence[LoadPoint]:
    """Return a point for each load, against the lowest one that was finished."""
    lowest = next(load for load in data.loads if load in data.answers)
    planned = data.answers[lowest].planned
    found = []
    for load in data.loads:
        if load not in data.answers:
            found.append(
                LoadPoint(
                    load=load,
                    outcome="gave up",
                    scored=0,
                    failed=planned,
                    value=None,
                    interval=None,
                )
            )
            continue
        timed = again if again is not None and load == data.first else passes[load]
        found.append(_describe_point(data, load, lowest, timed, task))
    return found


def _describe_point(
    data: LoadData, load: int, lowest: int, timed: LoadPass, task: str
) -> LoadPoint:
    base, here = data.answers[lowest], data.answers[load]
    lines, before = here.lines[0], base.lines[0]
    metric, result = here.task.result.metric, here.task.result
    share = (metric.lo, metric.hi, result.aggregation) == (0.0, 1.0, MEAN.name)
    total = math.fsum(line.value for line in lines.values())
    lost, won = count_changes(base, here)
    paired = sum(prompt in before for prompt in lines)
    more, less = len(before.keys() - lines.keys()), len(lines.keys() - before.keys())
    changed = [p for p, line in before.items() if p in lines and another_answer(line, lines[p])]
    wall_s = math.fsum(one.wall_s for one in timed.report.loads)
    answers = here if timed.report.loads == () else timed.read_answers(task)
    right = math.fsum(line.value for line in answers.lines[0].values())
    is_right = share and metric.higher_is_better
    bounds = None
    if share and paired:
        bounds = score_bounds(lost, won, paired, INTERVAL_ALPHA)
    return LoadPoint(
        load=load,
        outcome="lowest" if load == lowest else "holds",
        scored=len(lines),
        failed=here.planned - len(lines),
        value=result.value,
        interval=_find_interval(total, len(lines), metric.scale) if share and lines else None,
        paired=paired,
        lost=lost,
        won=won,
        p=change_p(lost, won),
        excluded=None if bounds is None else round(-bounds[0] * metric.scale, 3),
        failed_more=more,
        failed_less=less,
        p_failures=change_p(more, less),
        in_flight=max((one.max_in_flight for one in timed.report.loads), default=0),
        ttft_s={k: v for k, v in answers.task.traffic.ttft_s.items() if k in ("p50", "p99")},
        right_per_s=right / wall_s if is_right and wall_s > 0 else None,
        changed=len(changed),
        places=_find_places(base, here, changed) if changed else None,
    )


def _find_places(
    base: TaskAnswers, here: TaskAnswers, changed: Sequence[str]
) -> FirstDivergences | None:
    """Return where the changed answers part, by words: answers come without their tokens."""
    before, after = texts(base, changed), texts(here, changed)
    parted = [part(before.get(prompt, ""), after.get(prompt, "")) for prompt in changed]
    return find_first_divergences([one for one in parted if one is not None])


def _find_interval(total: float, n: int, scale: float) -> tuple[float, float]:
    low, high = wilson(total, n, INTERVAL_ALPHA)
    return scale * low, scale * high
