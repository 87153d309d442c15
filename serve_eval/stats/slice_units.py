"""Count prompts inside slices by the units that may be lost together: single prompts, or groups.

Several lost prompts of one passage may be one misreading. So least numbers of prompts, of changes
and of losses in a slice are numbers of groups where prompts share some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serve_eval.stats.largest_statistic import LEAST_INSIDE, is_large_enough

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray
    from serve_eval.stats.largest_statistic import BoolArray


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
