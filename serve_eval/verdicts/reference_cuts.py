"""The value of a reference if its answers had been right that were cut off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from serve_eval.schema import MEAN, Dataset, Reference, Task
from serve_eval.schema.cut import FEW_TOKENS
from serve_eval.verdicts import pairing


@dataclass(frozen=True, slots=True)
class CutsRight:
    """A reference of `runs` runs, if the `cut` answers that were cut in its first were right."""

    reference: Reference
    cut: int
    runs: int


def with_cuts_right(task: Task, dataset: Dataset, reference: Reference) -> CutsRight | None:
    """Return the reference as it was if no answer of its first run had been cut off.

    None if that is not known: only the first run has a sign for each answer. None as well if
    answers can be partly right, or if the task wants a token or two.
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
    best = hi if pairing.is_higher_better(task.metric, reference) else lo
    gain = math.fsum(best - score for cut, score in zip(answers.cut, runs[0], strict=True) if cut)
    value = reference.value + task.metric.scale * gain / (len(runs[0]) * len(runs))
    return CutsRight(replace(reference, value=value), sum(answers.cut), len(runs))
