"""Split scores into low and high ones where no score alone says which it is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def find_cut(values: Sequence[float], best: float | None = None) -> float:
    """Return the score below which scores are low. Higher is better; there is at least one score.

    It is the median, unless many scores are equal. Then the median itself may be the score of what
    lost a part: of 60 answers with half of the marks and 40 with all of them, none is below the
    median. So the cut is the score, or the `best` possible one if that is known, that leaves a
    share below it as near to a half as possible, but not none. Of two equally near ones it is the
    lower. If all scores are the best, or if all are equal and the best is not known, none is low.
    """
    ordered = sorted(values)
    candidates = dict.fromkeys(ordered if best is None else (*ordered, max(best, ordered[-1])))
    below = {cut: bisect_left(ordered, cut) for cut in candidates}
    low = [cut for cut, count in below.items() if count]
    return (
        min(low, key=lambda cut: (abs(2 * below[cut] - len(ordered)), cut)) if low else ordered[0]
    )
