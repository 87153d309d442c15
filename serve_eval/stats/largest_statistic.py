"""Choose among many slices of the samples by the largest of their standardised statistics.

Columns of `members` are slices, the simplest first; rows are prompts. Inside, a table of slices is
a sparse array with a row per slice, since a prompt is in few of them: a dense one of 50,000 prompts
and 1,000 slices takes 200 MB. All slices are tested
together: the distribution of the largest statistic corrects for the choice (Westfall and Young
1993, "Resampling-Based Multiple Testing", chapter 2).

Several lost prompts of one passage may be one misreading. So least numbers of prompts, of changes
and of losses in a slice are numbers of groups where prompts share some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from serve_eval.errors import ServeEvalError
from serve_eval.frozen import freeze

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray

    BoolArray = NDArray[numpy.bool_]


DRAWS, FIRST_DRAWS = 2999, 199
"""Numbers of exchanges or permutations: of all, and of those that show whether any is promising."""
PROMISING = 0.05
"""Largest p after the first draws at which more are made."""
LEAST_PROMPTS, LEAST_INSIDE = 40, 8
"""Smallest numbers of prompts in all, and of prompts and groups inside and outside a slice."""
MOST_INSIDE = 0.9
"""Share of the prompts from which a slice is the whole run in other words, and is not tested."""
LEAST_LOST = 5.0
"""Smallest net loss, or number of losses beyond the expected one, in a slice that is named: of
prompts, and of groups where prompts share some."""
AS_GOOD = 0.95
"""Part of the largest statistic from which a simpler slice explains as much."""
CELLS, BLOCK = 8_000_000, 1_000_000
"""Numbers of draws, of a byte each, and of single-precision losses held in memory at once."""


@freeze
class FoundSlice:
    """The slice with the strongest concentration of losses.

    `place` is its column. `p` is the largest one of all its tests, each adjusted for all slices;
    `least_p` is the least that their draws can show. `lost` of `all_lost` prompts that lost score
    are inside it, and `gained` of `all_gained` that gained.
    """

    place: int
    p: float
    least_p: float
    statistic: float
    lost: int
    all_lost: int
    gained: int = 0
    all_gained: int = 0


def choose(strength: FloatArray, passing: BoolArray) -> int | None:
    """Return the first of the passing slices that is about as strong as the strongest of them.

    None if no slice passes, or if none loses more than its share of the prompts.
    """
    import numpy

    if not passing.any():
        return None
    if (best := float(strength[passing].max())) <= 0.0:
        return None
    return int(numpy.flatnonzero(passing & (strength >= AS_GOOD * best))[0])


def tabulate(slices: Iterable[BoolArray], prompts: int) -> Any:
    """Return the table of slices, each given as True for the prompts inside it."""
    import numpy
    from scipy.sparse import csr_array

    inside = [numpy.flatnonzero(one).astype(numpy.int32) for one in slices]
    starts = numpy.cumsum([0, *map(len, inside)])
    places = numpy.concatenate(inside) if inside else numpy.empty(0, dtype=numpy.int32)
    ones = numpy.ones(len(places), dtype=numpy.float32)
    return csr_array((ones, places, starts), shape=(len(inside), prompts))


def as_table(members: Any, prompts: int) -> Any:
    """Return the table of slices that are given as one, or as an array with a column per slice.

    Raises ServeEvalError unless there is a value per prompt.
    """
    import numpy
    from scipy.sparse import csr_array, issparse

    if not issparse(members):
        dense = numpy.asarray(members, dtype=numpy.float32)
        members = csr_array(dense.T) if dense.ndim == 2 else csr_array((0, len(dense)))
    if members.shape[1] != prompts:
        raise ServeEvalError(
            f"slices of {members.shape[1]} prompts do not fit {prompts} prompts with scores",
            hint="give one row per prompt and one column per slice",
        )
    return members


def is_large_enough(inside: Any) -> BoolArray:
    """Return which slices of a table have enough prompts inside and outside, and are not all."""
    import numpy

    n, size = inside.shape[1], inside.sum(axis=1)
    enough = (size >= LEAST_INSIDE) & (n - size >= LEAST_INSIDE) & (n >= LEAST_PROMPTS)
    return numpy.asarray(enough & (size < MOST_INSIDE * n))


def list_inside(inside: Any, place: int) -> BoolArray:
    """Return True for the prompts inside one slice of a table."""
    import numpy

    found = numpy.zeros(inside.shape[1], dtype=bool)
    found[inside.indices[inside.indptr[place] : inside.indptr[place + 1]]] = True
    return found


def sum_inside(losses: ArrayLike, inside: Any) -> FloatArray:
    """Return the sums of losses inside each slice of a table, for each row of losses."""
    import numpy

    sums: FloatArray = (inside @ numpy.asarray(losses, dtype=numpy.float32).T).T
    return sums


def split_rows(rows: int, prompts: int) -> Iterator[slice]:
    """Yield the parts of `rows` rows of draws of which the losses are in memory at once."""
    size = max(1, BLOCK // prompts)
    return (slice(start, start + size) for start in range(0, rows, size))


def compute_p(
    observed: FloatArray, draw: Callable[[int], FloatArray], draws: int, prompts: int
) -> FloatArray:
    """Return the adjusted p of the observed statistics.

    `draw` returns a number of rows of statistics under the null hypothesis. After a few draws that
    leave no slice promising, it stops: that can only keep a slice from being named.
    """
    import numpy

    most = max(1, CELLS // max(prompts, len(observed)))
    largest = numpy.empty(0)
    while len(largest) < draws:
        size = min(most, FIRST_DRAWS if not len(largest) else draws, draws - len(largest))
        largest = numpy.concatenate([largest, draw(size).max(axis=1)])
        p = adjust(observed, largest)
        if p.min() > PROMISING:
            break
    return p


def adjust(observed: FloatArray, largest: FloatArray) -> FloatArray:
    """Return the share of draws with a largest statistic that reaches each observed one."""
    import numpy

    ordered = numpy.sort(largest)
    # Sums in single precision differ in their last digits.
    below = numpy.searchsorted(ordered, observed - 1e-4)
    return numpy.asarray((1.0 + len(ordered) - below) / (1.0 + len(ordered)), dtype=numpy.float64)


class Units:
    """The units of `prompts` prompts.

    `clusters` has a number for each prompt, the same for prompts of one group; None: each prompt is
    a unit.
    """

    def __init__(self, clusters: ArrayLike | None, prompts: int) -> None:
        import numpy

        self.grouped = clusters is not None
        self.numbers: IntArray = (
            numpy.arange(prompts)
            if clusters is None
            else numpy.unique(numpy.asarray(clusters), return_inverse=True)[1]
        )
        self.count = int(self.numbers.max(initial=-1)) + 1

    def sum(self, values: FloatArray) -> FloatArray:
        """Return the sum of each unit's values."""
        import numpy

        return numpy.bincount(self.numbers, weights=values, minlength=self.count).astype(float)

    def count_inside(self, inside: Any, flags: BoolArray) -> FloatArray:
        """Return the number of units with a flagged prompt inside each slice of a table."""
        import numpy

        return numpy.asarray((self._by_unit(inside, flags) > 0).sum(axis=1), dtype=numpy.float64)

    def in_units(self, total: FloatArray, inside: Any, lost: BoolArray) -> FloatArray:
        """Return numbers of lost prompts inside slices as numbers of units.

        Each lost prompt counts as the part of a unit that it is of those lost inside the slice.
        """
        import numpy

        if not self.grouped:
            return total
        prompts = inside @ lost.astype(numpy.float64)
        units = self.count_inside(inside, lost)
        return numpy.asarray(total * units / numpy.maximum(prompts, 1.0))

    def squares_outside(self, inside: Any, change: FloatArray) -> FloatArray:
        """Return the sum of squares of the units' changes outside each slice of a table."""
        import numpy

        if not self.grouped:
            found = (change**2).sum() - inside @ change**2
        else:
            whole, within = self.sum(change), self._by_unit(inside, change)
            found = (whole**2).sum() - 2.0 * (within @ whole) + within.power(2).sum(axis=1)
        return numpy.asarray(numpy.maximum(0.0, found))  # rounding: below 0

    def large_enough(self, inside: Any) -> BoolArray:
        """Return which slices have enough units inside and outside, and are not all prompts."""
        import numpy

        enough = is_large_enough(inside)
        if not self.grouped:
            return enough
        everyone = numpy.ones(len(self.numbers), dtype=bool)
        members = self._by_unit(inside.ceil(), everyone).tocsr()
        sizes = self.sum(everyone.astype(numpy.float64))
        full = members.copy()
        full.data = (members.data >= sizes[members.indices]).astype(numpy.float64)
        outside = self.count - full.sum(axis=1)
        return numpy.asarray(
            enough
            & (self.count_inside(inside, everyone) >= LEAST_INSIDE)
            & (outside >= LEAST_INSIDE)
        )

    def _by_unit(self, inside: Any, values: ArrayLike) -> Any:
        """Return a sparse table of the sums of values inside each slice, with a column per unit."""
        import numpy
        from scipy.sparse import csr_array

        n = len(self.numbers)
        row = numpy.asarray(values, dtype=numpy.float64)
        table = csr_array((row, (numpy.arange(n), self.numbers)), shape=(n, self.count))
        return csr_array(inside @ table)
