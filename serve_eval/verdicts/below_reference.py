"""Tell which answers fell below the reference's answers to the same prompts.

A wrong answer says little where the prompt is hard. Where the reference's runs had a prompt right,
a wrong answer is rare in a healthy run, whatever the prompts are, and a fault stands out. One rule
holds wherever scores are compared with those of a reference: in the alarm of a run and in the
attribution to workers.

* Right or wrong: only prompts that more than half of the reference's runs had right are looked at, and an answer is
  bad when it is not right.
* Graded: an answer is bad when it scores below the reference's mean for its prompt by more than the reference's runs
  of that prompt differ among themselves. Prompts on which no score could be so low are not looked at.

The reference alone decides which prompts are looked at, before the run is.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.schema import Dataset, Metric, Reference
from serve_eval.verdicts import pairing
from serve_eval.verdicts.reference_samples import LEVELS

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

LEAST = 20
"""Fewer prompts than these that can be looked at are no better than all prompts without a
reference."""
RIGHT, GRADED = "wrong where the reference was right", "scores below the reference's"
"""Words for what is counted as bad."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Hold what a reference lets expect of each prompt, in the order of the protocol.

    `least` is the lowest score that is not bad, times `sign` (-1 where lower scores are better);
    NaN where the prompt is not looked at. `alike` groups prompts of about the same difficulty: by
    how many of the reference's runs had them right, or for graded scores by whether these runs
    agreed. `counted` says in words what is bad.
    """

    least: array[float]
    alike: array[int]
    sign: float
    counted: str

    def count_looks(self, planned: int) -> int:
        """Count the samples that are looked at among `planned` ones, each prompt so many times as
        it is repeated.
        """
        return sum(not math.isnan(least) for least in self.least) * planned // len(self.least)

    def bad(self, place: int, score: float) -> bool | None:
        """Say whether a sample's score is bad; None where its prompt is not looked at."""
        least = self.least[place % len(self.least)]
        return None if math.isnan(least) else self.sign * score < least

    def group(self, place: int) -> int:
        """Name the group of a sample's prompt."""
        return self.alike[place % len(self.alike)]

    def among(
        self, places: Sequence[int], scores: NDArray[numpy.float64]
    ) -> tuple[NDArray[numpy.bool_], NDArray[numpy.int64]]:
        """Return which of the samples that are looked at are bad, and the indices of these samples
        in `places`.
        """
        import numpy

        least = numpy.frombuffer(self.least)[
            numpy.array(places, dtype=numpy.int64) % len(self.least)
        ]
        kept = numpy.flatnonzero(~numpy.isnan(least))
        return self.sign * scores[kept] < least[kept], kept


def of_reference(metric: Metric, dataset: Dataset, reference: Reference | None) -> Expected | None:
    """Read what a registered reference lets expect of a data set.

    None where it has no scores per sample, does not know a prompt, or leaves fewer than LEAST
    prompts to look at: the caller then looks at the scores alone.
    """
    if reference is None or (stored := pairing.read_stored_runs(dataset, reference)) is None:
        return None
    runs, lo, hi = stored
    higher = (
        metric.higher_is_better
        if reference.higher_is_better is None
        else reference.higher_is_better
    )
    return estimate_expected(runs, lo=lo, hi=hi, higher_is_better=higher)


def estimate_expected(
    runs: Sequence[Sequence[float]], *, lo: float | None, hi: float | None, higher_is_better: bool
) -> Expected | None:
    """Derive it from scores of runs over the same prompts, NaN where a run has none; None as for
    `of_reference`.

    `lo` and `hi` are the ends of the metric's range, None where it has none. Scores that a
    reference keeps are rounded to 1/LEVELS of the range: what lies that near is equal.
    """
    sign = 1.0 if higher_is_better else -1.0
    best, worst = (hi, lo) if higher_is_better else (lo, hi)
    slack = 0.0 if lo is None or hi is None else (hi - lo) / LEVELS
    two_valued = None not in (lo, hi) and all(
        math.isnan(score) or score in (lo, hi) for run in runs for score in run
    )
    least, alike = array("d"), array("q")
    for scores in zip(*runs, strict=True):
        mean, spread = math.fsum(scores) / len(scores), max(scores) - min(scores)
        right = sum(score == best for score in scores)
        floor = math.nan
        if two_valued and best is not None:
            if not math.isnan(mean) and 2 * right > len(scores):
                floor = sign * best - slack
        elif not math.isnan(mean):
            floor = sign * mean - spread - slack
            if worst is not None and floor <= sign * worst:
                floor = math.nan
        least.append(floor)
        alike.append(right if two_valued else int(spread <= slack))
    found = Expected(least, alike, sign, RIGHT if two_valued else GRADED)
    return found if least and found.count_looks(len(least)) >= LEAST else None
