"""Test whether pairs of samples were in flight together more often than chance allows.

A pair is two samples of which one's answer belongs to the other, by its content alone. On a sound
endpoint, content says nothing about who was in flight with whom, if the order was drawn. So the
contents can be permuted over the time slots. Content with long answers stays longer in flight, so
contents are permuted only among slots of similar length.

The p-value is that of a sequential Monte Carlo test (Besag and Clifford 1991, "Sequential Monte
Carlo p-values"): it stops as soon as it cannot become significant any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.frozen import freeze

if TYPE_CHECKING:
    from numpy import bool_, float64, int64
    from numpy.typing import NDArray

DRAWS = 1999
"""Default number of permutations that a significant result takes."""
LENGTHS = 5
"""Classes of similar length, of equal size, in each stratum."""


@freeze
class Together:
    """The result of the test.

    `observed` holds the pairs that were in flight together, as places in the given pairs, and
    `expected` is the mean number of claiming samples with such a pair in the permutations.
    """

    p: float
    observed: tuple[int, ...]
    expected: float


def compare_together(
    spans: Sequence[tuple[float, float]],
    strata: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    weights: Sequence[float],
    *,
    alpha: float,
    seed: int,
    draws: int = DRAWS,
) -> Together:
    """Return the one-sided p-value of the pairs that were in flight together.

    `spans` holds the start and end of each sample, `strata` the class within which its content may
    be exchanged. A pair is a claiming sample and the one that its answer belongs to. The statistic
    adds, for each claiming sample, the largest weight of its pairs in flight together. Raises
    ServeEvalError for fewer draws than `alpha` takes, which no result could reach.
    """
    if alpha * (draws + 1) < 1.0 - 1e-9:
        raise ServeEvalError(f"{draws} permutations cannot show a p of {alpha:g}")
    import numpy

    start, end = (numpy.array([span[i] for span in spans]) for i in (0, 1))
    order = sorted(range(len(pairs)), key=lambda k: pairs[k])
    claiming, owning = (numpy.array([pairs[k][i] for k in order], dtype=int) for i in (0, 1))
    weight = numpy.array([weights[k] for k in order])
    first = numpy.flatnonzero(numpy.diff(claiming, prepend=-1))

    def overlap(slots: NDArray[int64]) -> NDArray[bool_]:
        one, other = slots[claiming], slots[owning]
        found: NDArray[bool_] = (start[one] < end[other]) & (start[other] < end[one])
        return found

    def largest(together: NDArray[bool_]) -> NDArray[float64]:
        found: NDArray[float64] = numpy.maximum.reduceat(weight * together, first)
        return found

    classes = _classify(end - start, strata)
    random = numpy.random.default_rng(seed)
    real = overlap(numpy.arange(len(spans)))
    statistic = float(largest(real).sum()) - 1e-9
    most = int(alpha * (draws + 1) + 1e-9) - 1
    above = drawn = counted = 0
    while drawn < draws and above <= most:
        slots = numpy.arange(len(spans))
        for members in classes:
            slots[members] = members[random.permutation(len(members))]
        sums = largest(overlap(slots))
        above += float(sums.sum()) >= statistic
        counted += int((sums > 0.0).sum())
        drawn += 1
    # With fewer draws than planned, the test stopped after its last allowed exceedance.
    p = (above + 1) / (drawn + 1) if drawn == draws else min(1.0, max(above / drawn, 2 * alpha))
    return Together(
        p=p,
        observed=tuple(order[k] for k in numpy.flatnonzero(real)),
        expected=counted / drawn,
    )


def _classify(lengths: NDArray[float64], strata: Sequence[str]) -> list[NDArray[int64]]:
    """Return the samples of each stratum, in classes of similar length."""
    import numpy

    names = numpy.array(strata)
    found = []
    for name in dict.fromkeys(strata):
        members = numpy.flatnonzero(names == name)
        ranked = members[numpy.argsort(lengths[members], kind="stable")]
        found += [part for part in numpy.array_split(ranked, LENGTHS) if len(part)]
    return found
