"""The value of a reference if its answers had been right that were cut off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from serve_eval.schema import MEAN, Dataset, Reference, Task
from serve_eval.schema.cut import FEW_TOKENS
from serve_eval.verdicts import pairing


@dataclass(frozen=True, slots=True)
class CutsRight:
    """A reference as it was if the `cut` ones of its `answers` had been right, of `runs` runs.

    If it is not known which answers of later runs were cut, `reference` is None, and `cut` and
    `answers` are those of the first run.
    """

    reference: Reference | None
    cut: int
    answers: int
    runs: int


def with_cuts_right(task: Task, dataset: Dataset, reference: Reference) -> CutsRight | None:
    """Return the reference as it was if no answer of its runs had been cut off.

    None without signs of its answers. None as well if answers can be partly right, or if the task
    wants a token or two.
    """
    if task.aggregation is not MEAN or task.sampling.max_tokens <= FEW_TOKENS:
        return None
    found = pairing.read_stored_runs(dataset, reference)
    answers = pairing.read_stored_answers(dataset, reference)
    if found is None or answers is None:
        return None
    runs, lo, hi = found
    if any(score not in (lo, hi) for run in runs for score in run):
        return None
    if (cuts := answers.list_cuts(len(runs))) is None:
        return CutsRight(None, sum(answers.cut), len(answers.cut), len(runs))
    best = hi if pairing.is_higher_better(task.metric, reference) else lo
    before, after = (
        math.fsum(score for run in one for score in run)
        for one in (runs, pairing.lift_cuts(runs, cuts, best))
    )
    asked = len(runs) * len(runs[0])
    value = reference.value + task.metric.scale * (after - before) / asked
    return CutsRight(replace(reference, value=value), sum(map(sum, cuts)), asked, len(runs))
