"""When a run turned worse: the first moment at which the latest requests are worse than those
before them.

At every request the last w requests are compared with all before them, for a grid of windows w, by
the likelihood ratio of two shares against one (a generalised likelihood ratio chart, Siegmund and
Venkatraman 1995, with the share before unknown). The chart alarms when the largest ratio passes a
limit that it passes with probability alpha at most in the whole run, when the order of the requests
has nothing to do with their outcomes: hence the random order of a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.stats.inputs import check_level

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

SHORTEST, GROWTH = 8, 1.3
"""The shortest window, and how much longer the next one is."""
LEAST = 20
"""Below so many requests there is nothing to compare."""
FIRST = 50
"""So many requests say what a usual score and a usual length are, where there are more than two."""
SHORTEST_BLOCK, LONGEST_BLOCK, BLOCK_SHARE = 256, 16_384, 64
"""The chart is searched in blocks of one BLOCK_SHARE-th of the requests before them. The share of
bad ones before a window hardly changes within one, so that one bound holds for all of it, and no
step keeps the interpreter for long."""
ROUNDING = 1e-6
"""More than the error of a ratio of ten million requests."""


@dataclass(frozen=True, slots=True)
class Onset:
    """`noticed` is the number of the request at which the chart alarmed, counted from 1, `since`
    that of the first one that is worse, by the likeliest split of what had come until then.
    `before` and `after` are the shares of bad ones before `since` and from it to the end.
    """

    since: int
    noticed: int
    before: float
    after: float


def limit(n: int, alpha: float) -> float:
    """The logarithm of the likelihood ratio that a run of n requests passes by chance with
    probability alpha at most.

    The form is ours. Its constants were fitted to simulated quantiles of independent requests and
    then tried at alpha .008 and .0005: n of 100, 400 and 1319 (.008 also at 4096 and 14042), shares
    of bad ones from .02 to .6. They are no bound that was proven; `make calibrate` prints the table
    of docs/method.md for .008.
    """
    check_level("alpha", alpha)
    return -math.log(alpha) + 4.0 + 1.05 * max(0.0, math.log(n / 100.0))


def onset(bad: NDArray[numpy.bool_], alpha: float, planned: int | None = None) -> Onset | None:
    """When the share of bad ones rose, in the order of `bad`; None where it did not, as far as
    alpha lets tell.

    Of a run of which `bad` is only the beginning, `planned` is its length. The chart at a request
    depends on nothing that comes later: looking at every beginning of a run alarms in those runs
    that the look at the whole alarms in.
    """
    if len(bad) < LEAST:
        return None
    noticed = passes(bad, limit(planned or len(bad), alpha))
    if noticed is None:
        return None
    split = _likeliest_split(bad[:noticed])
    return Onset(
        since=split + 1,
        noticed=noticed,
        before=float(bad[:split].mean()),
        after=float(bad[split:].mean()),
    )


def passes(bad: NDArray[numpy.bool_], over: float, since: int = 0) -> int | None:
    """Find the first request, counted from 1, after which `chart` lies above `over`; None where
    there is none.

    The first `since` ones are known not to be it. It draws no chart: the ratio of two shares rises
    with the bad ones in the window and with the good ones before it, and falls with the bad ones
    before it. The most of the former and the fewest of the latter bound all ratios of a window in a
    block of ends, and only where the bound lies above `over` are these ratios computed.
    """
    import numpy

    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    start, n = since + 1, len(bad)
    while start <= n:
        end = min(n, start + min(max(start // BLOCK_SHARE, SHORTEST_BLOCK), LONGEST_BLOCK) - 1)
        if (found := _passes_within(counts, start, end, over)) is not None:
            return found
        start = end + 1
    return None


def _passes_within(counts: NDArray[numpy.int64], start: int, end: int, over: float) -> int | None:
    """The first of the numbers of requests from `start` to `end` at which the ratio of any window
    lies above `over`.
    """
    import numpy

    windows = numpy.array(_windows(end), dtype=numpy.int64)
    firsts = numpy.maximum(windows + 1, start)  # a window has a request before it
    pairs = zip(windows.tolist(), firsts.tolist(), strict=True)
    most = [
        int((counts[first : end + 1] - counts[first - w : end + 1 - w]).max()) for w, first in pairs
    ]
    bounds = _gain(
        counts[firsts - windows], end - windows, numpy.array(most, dtype=numpy.int64), windows
    )
    found = end + 1
    for i in numpy.flatnonzero(bounds > over - ROUNDING).tolist():
        ends = numpy.arange(firsts[i], min(end + 1, found))
        above = numpy.flatnonzero(_ratio(counts, ends - windows[i], ends) > over)
        if above.size:
            found = int(ends[above[0]])
    return found if found <= end else None


def chart(bad: NDArray[numpy.bool_]) -> NDArray[numpy.float64]:
    """The largest log likelihood ratio after each number of requests, from none to all: n + 1
    values.
    """
    import numpy

    n = len(bad)
    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    largest = numpy.zeros(n + 1)
    for window in _windows(n):
        ends = numpy.arange(window + 1, n + 1)
        largest[ends] = numpy.maximum(largest[ends], _ratio(counts, ends - window, ends))
    return largest


def latest(bad: NDArray[numpy.bool_]) -> float:
    """Compute the last value of `chart` alone: the largest log likelihood ratio after all of
    `bad`.
    """
    import numpy

    n = len(bad)
    windows = numpy.array(_windows(n), dtype=numpy.int64)
    if not windows.size:
        return 0.0
    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    return float(_ratio(counts, n - windows, numpy.full(len(windows), n)).max())


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual value of a run, by the median of its first ones; `bad` says whether it is a bad one
    itself.
    """

    value: float
    bad: bool

    def worse(self, values: NDArray[numpy.float64]) -> NDArray[numpy.bool_]:
        """Find the values that are worse than usual."""
        bad: NDArray[numpy.bool_] = values <= self.value if self.bad else values < self.value
        return bad


def usual(values: NDArray[numpy.float64], worst: float | None, first: int = FIRST) -> Usual:
    """Settle what is usual by the `first` values. Lower is worse, and `worst` is the lowest value
    there is (None: there is none). Of right and wrong answers the wrong ones are bad, whichever are
    more frequent.
    """
    import numpy

    start = values[:first]
    median = float(
        numpy.median(start)
    )  # of right and wrong answers either one: the wrong ones are bad then too
    not_lowest = worst is None or median > worst
    below = (
        not_lowest if (start == median).all() else bool((start < median).any())
    )  # it may be the lowest there is
    return Usual(median, bad=not below)


def worse_than_usual(
    values: NDArray[numpy.float64], worst: float | None, first: int = FIRST
) -> NDArray[numpy.bool_]:
    """Find the values that are worse than usual, see `usual`."""
    return usual(values, worst, first).worse(values)


def _likeliest_split(bad: NDArray[numpy.bool_]) -> int:
    import numpy

    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    splits = numpy.arange(1, len(bad))
    return int(splits[numpy.argmax(_ratio(counts, splits, numpy.full(len(splits), len(bad))))])


def _windows(n: int) -> list[int]:
    found, window = [], float(SHORTEST)
    while window < n:
        found.append(int(window))
        window = max(window * GROWTH, int(window) + 1.0)
    return found


def _ratio(
    counts: NDArray[numpy.int64], splits: NDArray[numpy.int64], ends: NDArray[numpy.int64]
) -> NDArray[numpy.float64]:
    """Ln of the likelihood of two shares, up to `splits` and from there to `ends`, over that of
    one; 0 where the second is not the larger.
    """

    before = counts[splits]
    return _gain(before, splits, counts[ends] - before, ends - splits)


def _gain(
    before: NDArray[numpy.int64],
    of: NDArray[numpy.int64],
    later: NDArray[numpy.int64],
    width: NDArray[numpy.int64],
) -> NDArray[numpy.float64]:
    """The same by counts: so many bad ones `before` and `later`, among `of` and `width`."""
    gain = (
        _likelihood(before, of)
        + _likelihood(later, width)
        - _likelihood(before + later, of + width)
    )
    gain[later * of <= before * width] = 0.0
    return gain


def _likelihood(hits: NDArray[numpy.int64], of: NDArray[numpy.int64]) -> NDArray[numpy.float64]:
    """Ln of the largest likelihood of so many hits among so many."""
    return _x_ln_x(hits) + _x_ln_x(of - hits) - _x_ln_x(of)


def _x_ln_x(counts: NDArray[numpy.int64]) -> NDArray[numpy.float64]:
    import numpy

    logarithms: NDArray[numpy.float64] = numpy.log(numpy.maximum(counts, 1))
    return counts * logarithms
