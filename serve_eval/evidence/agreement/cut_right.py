"""Restate a finished run as if its answers had been right that were cut off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
from msgspec import UNSET

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.schema import MEAN
from serve_eval.schema.cut import FEW_TOKENS, read_limit
from serve_eval.stats.missing import bound_missing
from serve_eval.storage.records.scores import ScoreRecord


def count_cut(answers: TaskAnswers) -> int:
    """Return how many answers of a run were cut off."""
    return sum(1 for _ in _list_cut(answers))


def with_cuts_right(answers: TaskAnswers) -> TaskAnswers | None:
    """Return a run with its value, bounds and scores if its cut answers were right.

    None if this says nothing: without a range, for a value that is no mean, and if answers can be
    partly right.
    """
    result, metric = answers.task.result, answers.task.result.metric
    lo, hi = metric.lo, metric.hi
    scored = [line for lines in answers.lines for line in lines.values()]
    if lo is None or hi is None or result.aggregation != MEAN.name or not scored:
        return None
    if any(line.value not in (lo, hi) for line in scored):
        return None
    best, cut = hi if metric.higher_is_better else lo, {*map(id, _list_cut(answers))}
    lines = tuple(
        {
            prompt: msgspec.structs.replace(line, value=best) if id(line) in cut else line
            for prompt, line in one.items()
        }
        for one in answers.lines
    )
    total = math.fsum(line.value for one in lines for line in one.values())
    bounds = bound_missing(total, len(scored), result.planned, lo, hi)
    result = replace(
        result,
        value=metric.scale * total / len(scored),
        bounds=(metric.scale * bounds[0], metric.scale * bounds[1]),
    )
    return replace(answers, task=replace(answers.task, result=result), lines=lines)


def _list_cut(answers: TaskAnswers) -> Iterator[ScoreRecord]:
    """Yield the scores of cut answers. Older runs only have the server's word for it."""
    limit = read_limit(answers.task.fingerprint)
    by_design = limit is not None and limit <= FEW_TOKENS
    for lines in answers.lines:
        for line in lines.values():
            if line.cut is not UNSET or (line.truncated and not by_design):
                yield line
