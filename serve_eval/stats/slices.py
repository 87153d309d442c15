"""Find the slice of the samples that loses score, with or without a reference.

Two things must hold of a slice:

1. Score is lost inside it. Under health, the scores of a prompt are exchangeable between reference
   and candidate, so they are exchanged at random, prompt by prompt. This is exact whatever else
   differs between prompts: that longer answers are more often wrong accuses nobody.
2. More score is lost inside than the same damage everywhere or another model explains, and at
   least half of the net loss.

Slices may be of prompts, or of answers by something that health does not tie to their score, such
as the worker or the time. For slices by something that comes with the score, such as the length of
an answer, the sides are exchanged with their answers, and point 2 compares the lost answers with
wrong answers of the reference and with its answers to the same prompts.

Lost samples are permuted within strata. This is exact if, within a stratum, a slice does not depend
on how hard a prompt is: true for the time in a run of random order, and for the length of a prompt
modulo a block among prompts of similar length. A subject, a length or a stop reason comes with the
difficulty and must not be tested so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serve_eval.stats.largest_statistic import (
    DRAWS,
    LEAST_LOST,
    FoundSlice,
    Units,
    as_table,
    choose,
    compute_p,
    list_inside,
    split_rows,
    sum_inside,
)
from serve_eval.stats.losses import compute_permuted_p, reject_other_model, reject_uniform_loss

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray
    from serve_eval.stats.largest_statistic import BoolArray


LEAST_CHANGED = 6
"""Smallest number of prompts, or of groups, with changed scores in a slice.

Exchanged scores stay changed, so that this choice keeps the test exact."""
NOISE = 2.0
"""Standard deviations under health that are taken off the net loss outside a slice.

A slice that is named holds more of the net loss than what is left outside."""
LEAST_SHARE = 0.5
"""Smallest share of the lost answers in a slice of answers that is named."""
CONCENTRATED = 0.01
"""Level of the tests against a loss that is the same everywhere, and against another model."""


def find_paired_slice(
    reference: ArrayLike,
    candidate: ArrayLike,
    members: Any,
    *,
    level: float,
    worst: float = 0.0,
    clusters: ArrayLike | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> FoundSlice | None:
    """Return the slice that explains the loss of a candidate against its reference, or None.

    `reference` and `candidate` have a row per run and a column per prompt; higher is better, and
    `worst` is the score of a spoiled answer. Unequal numbers of runs use the first run of the
    candidate. `members` is a table of slices, or has a column per slice with 1 for prompts
    inside it, else 0. `clusters` has a number for each prompt, the same for prompts that may be
    lost together: their sides are exchanged as a whole.
    """
    import numpy

    values = _exchangeable(reference, candidate)
    members, change = as_table(members, len(values)), _losses(values, 0)
    units = Units(clusters, len(values))
    kept = _usable(members, change, units)
    if not len(kept):
        return None
    members = inside = members[kept]
    random = numpy.random.default_rng(seed)
    p = _exchange_p(values, inside, clusters, draws, random)
    net = inside @ change
    beyond_noise = change.sum() - net - NOISE * numpy.sqrt(units.squares_outside(inside, change))
    passing = (p <= level) & (net >= numpy.maximum(LEAST_LOST, beyond_noise))
    passing &= units.in_units(net, inside, change > 0.0) >= LEAST_LOST
    if not passing.any():
        return None
    # The largest p of three tests is one of "a healthy, a worse or another model all over".
    for reject in (
        reject_other_model(change + values[:, 0], change, inside, draws, random, clusters),
        reject_uniform_loss(values, change, inside, worst, random, draws=draws, units=units),
    ):
        passing &= reject <= CONCENTRATED
        if not passing.any():
            return None
        p = numpy.maximum(p, reject)
    size = inside.sum(axis=1)
    strength = (net - change.mean() * size) / numpy.sqrt(size * (change**2).mean())
    chosen = choose(strength, passing)
    if chosen is None:
        return None
    lost, gained, within = change > 0.0, change < 0.0, list_inside(inside, chosen)
    return FoundSlice(
        place=int(kept[chosen]),
        p=float(p[chosen]),
        least_p=1.0 / (1.0 + draws),
        statistic=float(strength[chosen]),
        lost=int((lost & within).sum()),
        all_lost=int(lost.sum()),
        gained=int((gained & within).sum()),
        all_gained=int(gained.sum()),
    )


def find_answer_slice(
    reference: ArrayLike,
    candidate: ArrayLike,
    members: tuple[Any, Any],
    *,
    level: float,
    worst: float = 0.0,
    clusters: ArrayLike | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> FoundSlice | None:
    """Return the slice of answers that explains the loss of a candidate, or None.

    Both sides have one score per prompt, and `members` are the slices of their answers. `clusters`
    are as in `find_paired_slice`.
    """
    import numpy

    values = _exchangeable(reference, candidate)
    before, after = (as_table(side, len(values)) for side in members)
    change = _losses(values, 0)
    # An exchange of the answers moves each statistic by the mean of both sides' membership.
    both = (before + after) / 2.0
    units = Units(clusters, len(values))
    kept = _usable(both, change, units)
    if not len(kept):
        return None
    before, after, both = before[kept], after[kept], both[kept]
    p = _exchange_p(values, both, clusters, draws, numpy.random.default_rng(seed))
    lost, wrong = change > 0.0, values[:, 1] <= worst
    net = sum_inside(lost, after) - sum_inside(change < 0.0, before)
    passing = (p <= level) & (net >= max(LEAST_LOST, LEAST_SHARE * lost.sum()))
    passing &= units.in_units(net, after, lost) >= LEAST_LOST
    unlike = numpy.ones(len(kept))
    for place in numpy.flatnonzero(passing).tolist():
        sides = list_inside(before, place), list_inside(after, place)
        unlike[place] = min(1.0, len(kept) * _compare_answers(lost, wrong, *sides, units))
    chosen = choose(-numpy.log(unlike), passing & (unlike <= CONCENTRATED))
    if chosen is None:
        return None
    within = list_inside(after, chosen)
    return FoundSlice(
        place=int(kept[chosen]),
        p=float(p[chosen]),
        least_p=1.0 / (1.0 + draws),
        statistic=float(-numpy.log(unlike[chosen])),
        lost=int((lost & within).sum()),
        all_lost=int(lost.sum()),
        gained=int(((change < 0.0) & within).sum()),
        all_gained=int((change < 0.0).sum()),
    )


def _compare_answers(
    lost: BoolArray, wrong: BoolArray, before: BoolArray, after: BoolArray, units: Units
) -> float:
    """Return the p-value that lost answers are in a slice no more often than others are.

    It is the largest one of three: against the wrong answers of the reference, against its answers
    to the same prompts, and against the other answers of the candidate. A group counts once among
    the lost ones and once among those that they are compared with, on the side of most of these.
    """
    from serve_eval.stats.no_worse import no_worse
    from serve_eval.stats.sign_tests import mcnemar

    of_lost = _count_units(lost, after, units, ties=0)
    tables = [
        (*of_lost, *_count_units(wrong, before, units, ties=1)),
        (*of_lost, *_count_units(~lost, after, units, ties=1)),
    ]
    moved = units.sum(lost * (after.astype(float) - before))
    changed = mcnemar(int((moved > 0).sum()), int((moved < 0).sum())).p_exact
    return max(changed, *(no_worse([table]) for table in tables))


def _count_units(
    answers: BoolArray, within: BoolArray, units: Units, *, ties: int
) -> tuple[int, int]:
    """Return the number of units with such answers, and of those with most of them in a slice.

    `ties` is 1 if a unit with half of them in the slice counts as in it.
    """
    some = units.sum(answers.astype(float))
    more = 2.0 * units.sum((answers & within).astype(float)) - some
    return int((some > 0).sum()), int(((some > 0) & (more + ties > 0)).sum())


def _exchangeable(reference: ArrayLike, candidate: ArrayLike) -> FloatArray:
    """Return the scores that are exchanged: a row per prompt, the candidate's in column 0.

    Sides with the same number of runs are exchanged as a whole, by their means.
    """
    import numpy

    before, after = (
        numpy.atleast_2d(numpy.asarray(side, dtype=numpy.float64))
        for side in (reference, candidate)
    )
    if len(before) == len(after):
        return numpy.stack([after.mean(axis=0), before.mean(axis=0)], axis=1)
    return numpy.concatenate([after[:1], before]).T


def _losses(values: FloatArray, column: int) -> FloatArray:
    """Return the loss of each prompt if the score in this column is the candidate's."""
    import numpy

    picked = values[:, column]
    loss = (values.sum(axis=1) - picked) / (values.shape[1] - 1) - picked
    return numpy.where(numpy.abs(loss) < 1e-12, 0.0, loss)


def _usable(inside: Any, change: FloatArray, units: Units) -> IntArray:
    """Return the columns of slices that are large enough."""
    import numpy

    changed = units.count_inside(inside.ceil(), change != 0.0)
    return numpy.flatnonzero(units.large_enough(inside) & (changed >= LEAST_CHANGED))


def _exchange_p(
    values: FloatArray,
    inside: Any,
    clusters: ArrayLike | None,
    draws: int,
    random: numpy.random.Generator,
) -> FloatArray:
    """Return the adjusted p of a net loss inside each slice, by exchanges of the scores."""
    import numpy

    # Each prompt counts alike, whether or not its scores differ: losses close together stand out.
    spread = numpy.sqrt(inside.power(2).sum(axis=1))
    moved = values.min(axis=1) < values.max(axis=1)
    values, inside = values[moved], inside[:, numpy.flatnonzero(moved)]
    n, columns = values.shape
    losses = numpy.stack([_losses(values, column) for column in range(columns)]).astype(
        numpy.float32
    )
    places = numpy.arange(n)
    units = (
        places
        if clusters is None
        else numpy.unique(numpy.asarray(clusters)[moved], return_inverse=True)[1]
    )
    count = int(units.max(initial=-1)) + 1

    def exchange(size: int) -> FloatArray:
        """Return the statistics of `size` exchanges."""
        picked = random.integers(0, columns, (size, count), dtype=numpy.int8)[:, units]
        parts = [sum_inside(losses[picked[some], places], inside) for some in split_rows(size, n)]
        return numpy.asarray(numpy.concatenate(parts) / spread)

    return compute_p(sum_inside(losses[0], inside) / spread, exchange, draws, n)


LEAST_GAP = 0.1
"""Smallest difference of the shares of lost samples inside and outside a slice that is named."""


def find_unpaired_slice(
    lost: ArrayLike,
    members: Any,
    strata: ArrayLike,
    *,
    level: float,
    clusters: ArrayLike | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> FoundSlice | None:
    """Return the slice in which more samples are lost than in the same strata outside, or None.

    `lost` is True for lost samples, `strata` has a number for each sample.
    `members` and `clusters` are as in `find_paired_slice`.
    """
    import numpy

    bad = numpy.asarray(lost, dtype=bool)
    inside = as_table(members, len(bad))
    codes = numpy.unique(numpy.asarray(strata), return_inverse=True)[1]
    units = Units(clusters, len(bad))
    kept = numpy.flatnonzero(units.large_enough(inside))
    if not len(kept) or not bad.any():
        return None
    inside = inside[kept]
    random, losses = numpy.random.default_rng(seed), bad.astype(numpy.float64)
    p, strength, expected = compute_permuted_p(losses, inside, codes, draws, random, clusters)
    within = sum_inside(losses, inside)
    excess, size = within - expected, inside.sum(axis=1)
    gap = within / size - (bad.sum() - within) / (len(bad) - size)
    enough = (excess >= LEAST_LOST) & (units.in_units(excess, inside, bad) >= LEAST_LOST)
    chosen = choose(strength, (p <= level) & enough & (gap >= LEAST_GAP))
    if chosen is None:
        return None
    return FoundSlice(
        place=int(kept[chosen]),
        p=float(p[chosen]),
        least_p=1.0 / (1.0 + draws),
        statistic=float(strength[chosen]),
        lost=round(float(within[chosen])),
        all_lost=int(bad.sum()),
    )
