"""Measure what a reference's scores tell of the noise of the next comparison with it.

That is the flip rate between its runs, and the design effect of groups, which says how many times
the independent prompts a paired rule needs. Both are of healthy runs, before anything is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.schema import Dataset, Reference
from serve_eval.stats.clusters import (
    cluster_keys,
    design_effect,
    design_effect_of_runs,
    number_keys,
)
from serve_eval.stats.instability import instability
from serve_eval.verdicts.pairing import read_stored_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceNoise:
    """The noise of a reference over the prompts of a data set.

    `groups` is the number of groups (None: no two prompts share one), `effect` their design effect:
    on the difference of two healthy runs, or on the value if there is one run. `flip_rate` is the
    share of prompts on which two runs disagree; None for one run, and for scores between right and
    wrong.
    """

    prompts: int
    runs: int
    groups: int | None
    effect: float
    flip_rate: float | None

    @property
    def source(self) -> str:
        """The words for where the effect is from."""
        return f"of the reference's {self.runs} runs" if self.runs > 1 else "of the reference's run"


def measure_noise(dataset: Dataset, reference: Reference) -> ReferenceNoise | None:
    """Return the noise of a reference over a data set; None if it has no scores of the prompts."""
    import numpy

    if (stored := read_stored_runs(dataset, reference)) is None:
        return None
    runs, lo, hi = stored
    rows = numpy.array(runs)
    if not numpy.isfinite(rows).all():
        return None
    keys = cluster_keys([sample.group for sample in dataset.samples])
    groups, effect = None, 1.0
    if keys is not None:
        codes = number_keys(keys)
        groups = len(set(codes.tolist()))
        changing = len(rows) > 1 and bool((rows != rows[0]).any())
        effect = (
            design_effect_of_runs(rows, codes)
            if changing
            else design_effect(rows.mean(axis=0), codes)
        )
    right_or_wrong = len(rows) > 1 and bool(numpy.isin(rows, (lo, hi)).all())
    return ReferenceNoise(
        prompts=rows.shape[1],
        runs=len(rows),
        groups=groups,
        effect=effect,
        flip_rate=instability([list(run) for run in runs]).flip_rate if right_or_wrong else None,
    )
