"""Find the first request after which the latest requests are worse than those before them.

At every request the last w requests are compared with all before them, for a grid of windows w, by
the likelihood ratio of two shares against one (a generalised likelihood ratio chart, Siegmund and
Venkatraman 1995, with the share before unknown). The chart alarms when the largest ratio passes a
limit. It passes the limit with probability at most alpha in the whole run if the order of the
requests is unrelated to their outcomes: hence the random order of a run.

An early verdict infers the remaining answers from those so far. If an endpoint degrades during the
run, that inference fails. Before a run stops, the chart of `onset` is therefore checked, and there
is no decision while the chart is above `SHARE` of its alarm limit. A decline after the stop cannot
be seen.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.stats.inputs import check_level

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    _Counts = NDArray[numpy.int64] | NDArray[numpy.float64]


SHORTEST, GROWTH = 8, 1.3
"""The shortest window, and the factor from one window to the next."""
LEAST = 20
"""Least number of requests for a comparison."""
FIRST = 50
"""Number of first requests that define the usual score and length, for more than two values."""
SHORTEST_BLOCK, LONGEST_BLOCK, BLOCK_SHARE = 256, 16_384, 4
"""The chart is searched in blocks of one BLOCK_SHARE-th of the requests before them. Within a block
the share of bad answers before a window changes little, so that one bound holds for all of it, and
no step blocks the interpreter for long."""
_TINY = 1e-300
"""In place of 0, which has no logarithm: 0 ln 0 is 0."""
ROUNDING = 1e-6
"""Upper limit of the rounding error of a ratio of ten million requests."""


@dataclass(frozen=True, slots=True)
class Onset:
    """The point at which a run became worse.

    `noticed` is the number, from 1, of the request at which the chart alarmed. `since` is that of
    the first worse request, by the likeliest split of the requests up to then. `before` and `after`
    are the shares of bad answers before `since` and from it to the end.
    """

    since: int
    noticed: int
    before: float
    after: float


def limit(n: int, alpha: float) -> float:
    """Return the limit of the log likelihood ratio of a run of n requests.

    A run passes it by chance with probability at most alpha. The form is ours. Its constants were
    fitted to simulated quantiles of independent requests and then tried at alpha .008 and .0005: n
    of 100, 400 and 1319 (.008 also at 4096 and 14042), shares of bad answers from .02 to .6. They
    are not a proven bound; `make calibrate` prints docs/measured/method-onset.md for .008.
    """
    check_level("alpha", alpha)
    return -math.log(alpha) + 4.0 + 1.05 * max(0.0, math.log(n / 100.0))


def onset(bad: NDArray[numpy.bool_], alpha: float, planned: int | None = None) -> Onset | None:
    """Return the point at which the share of bad answers rose, in the order of `bad`.

    None if no rise is detected at level alpha. If `bad` is only the beginning of a run, `planned`
    is the length of the run. The chart at a request does not depend on later requests: checking
    every beginning of a run alarms in the same runs as checking the whole.
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
    """Return the first request, counted from 1, after which `chart` is above `over`, or None.

    The first `since` requests are known not to be it. No chart is drawn: the ratio of two shares
    rises with the bad answers in the window and with the number of requests before it, and falls
    with the share of bad ones among these. The most of the former and the least of the latter bound
    all ratios of a window in a block of ends. The ratios are computed only if that bound is above
    `over`.
    """
    import numpy

    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    start, n = since + 1, len(bad)
    if not counts[n]:
        return None
    shares = counts / numpy.maximum(numpy.arange(n + 1), 1)
    while start <= n:
        end = min(n, start + min(max(start // BLOCK_SHARE, SHORTEST_BLOCK), LONGEST_BLOCK) - 1)
        if (found := _passes_within(counts, shares, start, end, over)) is not None:
            return found
        start = end + 1
    return None


def _passes_within(
    counts: NDArray[numpy.int64],
    shares: NDArray[numpy.float64],
    start: int,
    end: int,
    over: float,
) -> int | None:
    """Return the first number of requests at which the ratio of any window exceeds `over`.

    Only the numbers from `start` to `end` are searched; None if there is none. `shares` are those
    of the bad answers, of which there are `counts`, by the number of requests.
    """
    import numpy

    windows = numpy.array(_windows(end), dtype=numpy.int64)
    firsts = numpy.maximum(windows + 1, start)  # a window has a request before it
    most, least = [], []
    for w, first in zip(windows.tolist(), firsts.tolist(), strict=True):
        most.append((counts[first : end + 1] - counts[first - w : end + 1 - w]).max())
        least.append(shares[first - w : end + 1 - w].min())
    before = end - windows
    bounds = _gain(numpy.array(least) * before, before, numpy.array(most), windows)
    found = end + 1
    for i in numpy.flatnonzero(bounds > over - ROUNDING).tolist():
        ends = numpy.arange(firsts[i], min(end + 1, found))
        above = numpy.flatnonzero(_ratio(counts, ends - windows[i], ends) > over)
        if above.size:
            found = int(ends[above[0]])
    return found if found <= end else None


def chart(bad: NDArray[numpy.bool_]) -> NDArray[numpy.float64]:
    """Return the largest log likelihood ratio after each number of requests, from 0 to n."""
    import numpy

    n = len(bad)
    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    largest = numpy.zeros(n + 1)
    for window in _windows(n):
        ends = numpy.arange(window + 1, n + 1)
        largest[ends] = numpy.maximum(largest[ends], _ratio(counts, ends - window, ends))
    return largest


def latest(bad: NDArray[numpy.bool_]) -> float:
    """Return the last value of `chart`: the largest log likelihood ratio after all of `bad`."""
    import numpy

    n = len(bad)
    windows = numpy.array(_windows(n), dtype=numpy.int64)
    if not windows.size:
        return 0.0
    counts = numpy.concatenate([[0], numpy.cumsum(bad)])
    return float(_ratio(counts, n - windows, numpy.full(len(windows), n)).max())


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual value of a run: the median of its first values.

    `bad` is True if the usual value is itself bad.
    """

    value: float
    bad: bool

    def worse(self, values: NDArray[numpy.float64]) -> NDArray[numpy.bool_]:
        """Return True for each value that is worse than usual."""
        bad: NDArray[numpy.bool_] = values <= self.value if self.bad else values < self.value
        return bad


def usual(values: NDArray[numpy.float64], worst: float | None, first: int = FIRST) -> Usual:
    """Return what is usual, by the `first` values.

    Lower is worse, and `worst` is the lowest possible value (None: there is none). Of right and
    wrong answers the wrong ones are bad, even if they are more frequent.
    """
    import numpy

    start = values[:first]
    # Of right and wrong answers the median may be either: the wrong ones are bad in both cases.
    median = float(numpy.median(start))
    not_lowest = worst is None or median > worst
    # The median may be the lowest possible value.
    below = not_lowest if (start == median).all() else bool((start < median).any())
    return Usual(median, bad=not below)


def worse_than_usual(
    values: NDArray[numpy.float64], worst: float | None, first: int = FIRST
) -> NDArray[numpy.bool_]:
    """Return True for each value that is worse than usual, see `usual`."""
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
    """Return ln of the likelihood of two shares over that of one; 0 if the second is not larger.

    The first share is up to `splits`, the second from there to `ends`.
    """

    before = counts[splits]
    return _gain(before, splits, counts[ends] - before, ends - splits)


def _gain(before: _Counts, of: _Counts, later: _Counts, width: _Counts) -> NDArray[numpy.float64]:
    """Return the same by counts: bad answers `before` and `later`, among `of` and `width`.

    A count may be a fraction: the number that a share stands for.
    """
    gain = (
        _likelihood(before, of)
        + _likelihood(later, width)
        - _likelihood(before + later, of + width)
    )
    gain[later * of <= before * width] = 0.0
    return gain


def _likelihood(hits: _Counts, of: _Counts) -> NDArray[numpy.float64]:
    """Return ln of the largest likelihood of `hits` among `of`."""
    return _x_ln_x(hits) + _x_ln_x(of - hits) - _x_ln_x(of)


def _x_ln_x(counts: _Counts) -> NDArray[numpy.float64]:
    import numpy

    logarithms: NDArray[numpy.float64] = numpy.log(numpy.maximum(counts, _TINY))
    return counts * logarithms


ALPHA = 0.008
"""Probability that the chart of a sound run passes its limit."""
SHARE = 1.0 / 3.0
"""Share of the limit. By simulation with 198 and 1319 prompts: at 1/2, twice as many runs that
degrade in their middle pass after that; at 1/4, sound runs stop later."""


class DriftHold:
    """Decide whether the first values of a run of `planned` prompts delay a stop.

    Values come in the order of the looks and are oriented so that lower is worse. `worst` is the
    lowest possible value, and replaces a missing one. Two charts are kept: one of values worse than
    usual, and one of values worse than the reference's, if known.
    """

    def __init__(self, planned: int, worst: float) -> None:
        self._limit = SHARE * limit(planned, ALPHA)
        self._worst = worst
        self._values = array("d")
        self._worse = bytearray()
        self.times = 0

    def add(self, value: float | None, reference: float | None) -> None:
        """Add the next value and the reference's for the same prompt.

        None stands for a missing value or an unknown reference.
        """
        self._values.append(self._worst if value is None else value)
        if reference is not None:
            self._worse.append(value is None or value < reference)

    def holds(self) -> bool:
        """Return True if the chart delays a stop after the last value, and count it in `times`."""
        import numpy

        usual = worse_than_usual(numpy.array(self._values), self._worst, FIRST)
        charts = [latest(usual)]
        if self._worse:
            charts.append(latest(numpy.array(self._worse, dtype=numpy.bool_)))
        high = max(charts) > self._limit
        self.times += high
        return high
