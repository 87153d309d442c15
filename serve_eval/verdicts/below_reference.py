"""Find or bound the answers that score below the reference.

A wrong answer means little on a hard prompt. On a prompt that the reference's runs had right, a
healthy run is rarely wrong, so a fault stands out. The same rule applies to the alarm of a run and
to the attribution to workers.

* Right or wrong: only prompts that more than half of the reference's runs had right are considered.
  An answer is bad if it is not right.
* Graded: an answer is bad if it scores below the reference's mean for its prompt by more than the
  reference's runs of that prompt differ among themselves. A prompt is left out if no score could be
  that low.

The reference alone selects the prompts, before the run starts.
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
"""Least number of selected prompts; fewer are no better than all prompts without a reference."""
RIGHT, GRADED = "wrong where the reference was right", "scores below the reference's"
"""Descriptions of what counts as bad."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The scores that a reference lets expect, per prompt, in the order of the protocol.

    `least` is the lowest score that is not bad, times `sign` (-1 if lower scores are better); NaN
    if the prompt is not considered. `alike` groups prompts of about the same difficulty: by the
    number of reference runs that had them right, or for graded scores by whether these runs agreed.
    `counted` describes what is bad.
    """

    least: array[float]
    alike: array[int]
    sign: float
    counted: str

    def count_looks(self, planned: int) -> int:
        """Return the number of considered samples among `planned` ones, repeats included."""
        return sum(not math.isnan(least) for least in self.least) * planned // len(self.least)

    def bad(self, place: int, score: float) -> bool | None:
        """Return whether a sample's score is bad; None if its prompt is not considered."""
        least = self.least[place % len(self.least)]
        return None if math.isnan(least) else self.sign * score < least

    def group(self, place: int) -> int:
        """Return the group of a sample's prompt."""
        return self.alike[place % len(self.alike)]

    def among(
        self, places: Sequence[int], scores: NDArray[numpy.float64]
    ) -> tuple[NDArray[numpy.bool_], NDArray[numpy.int64]]:
        """Return which considered samples are bad, and the indices of these samples in `places`."""
        import numpy

        least = numpy.frombuffer(self.least)[
            numpy.array(places, dtype=numpy.int64) % len(self.least)
        ]
        kept = numpy.flatnonzero(~numpy.isnan(least))
        return self.sign * scores[kept] < least[kept], kept


def of_reference(metric: Metric, dataset: Dataset, reference: Reference | None) -> Expected | None:
    """Return what a registered reference lets expect of a data set.

    None if it has no scores per sample, does not know a prompt, or selects fewer than LEAST
    prompts: the caller then uses the scores alone.
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
    """Return what scores of runs over the same prompts let expect; None as for `of_reference`.

    A score is NaN if a run has none. `lo` and `hi` are the ends of the metric's range, None if it
    has none. Stored scores are rounded to 1/LEVELS of the range, so scores that close count as
    equal.
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


def count_wrong_at_most(
    metric: Metric, value: float, n: int, *, higher_is_better: bool | None = None, graded: bool
) -> int | None:
    """Return how many of n answers can be wrong if their mean is `value`, None without a range.

    The distance of the mean from the best score is shared by the wrong answers. An answer has the
    whole range as its share if it has the worst score, or half of it at least if answers are
    `graded` and those in the lower half count as wrong (Markov's inequality). `higher_is_better`
    replaces that of the metric.
    """
    lo, hi = metric.lo, metric.hi
    if lo is None or hi is None or hi <= lo or not metric.scale:
        return None
    higher = metric.higher_is_better if higher_is_better is None else higher_is_better
    mean = value / metric.scale
    missing = (hi - mean if higher else mean - lo) / (hi - lo)
    return min(n, max(0, math.ceil(n * missing * (2 if graded else 1) - 1e-9)))
