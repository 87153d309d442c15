"""Test for losses among the anchors, the prompts that the reference had right in every run.

Of K reference runs all but the last select the anchors: the prompts with the best score in each of
them. The last registered run had no part in the selection. It is paired with the candidate on the
anchors alone. If the candidate is the same endpoint, these two sides are exchangeable on any
prompts that other runs selected, so the test of a drop is as exact there as on all prompts. Prompts
with varying answers are left out, and with them most of the noise, so a loss of stable prompts is
detected with a fraction of the requests.

A build that permanently alters answers loses anchors too, even if it gains as many other prompts:
its gains are outside the anchors. The test therefore asks for the same endpoint, not for the same
mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.stats.drop import DropTest, drop_test
from serve_eval.stats.pairs import Pairs, pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_ANCHORS = 10
"""Least number of anchors for a conclusion."""


@dataclass(frozen=True, slots=True)
class AnchorTest:
    """The result of the test on `anchors` prompts.

    The last reference run lost `reference_lost` of them, the candidate's first run
    `candidate_lost`. `test` is the test for a drop among them.
    """

    anchors: int
    reference_lost: int
    candidate_lost: int
    test: DropTest


def anchor_pairs(pairs: Pairs) -> Pairs | None:
    """Pair the last reference run with the candidate on the anchors.

    None for fewer than two reference runs, for fewer than MIN_ANCHORS anchors with an answer on
    both sides, and for a metric without a best score.
    """
    import numpy

    if pairs.reference_runs < 2 or not numpy.isfinite(pairs.good):
        return None
    chosen: NDArray[numpy.bool_] = (pairs.reference[:-1] == pairs.good).all(axis=0) & (
        pairs.weights > 0.0
    )
    if int((chosen & pairs.complete).sum()) < MIN_ANCHORS:
        return None
    return pair(
        pairs.reference[-1:, chosen],
        pairs.candidate[:, chosen],
        lo=min(pairs.bad, pairs.good),
        hi=max(pairs.bad, pairs.good),
        higher_is_better=pairs.good > pairs.bad,
        weights=pairs.weights[chosen] if pairs.weighted else None,
        clusters=None if pairs.clusters is None else pairs.clusters[chosen].tolist(),
    )


def anchor_test(pairs: Pairs) -> AnchorTest | None:
    """Test for a drop among the anchors; None if `anchor_pairs` returns None.

    A missing answer counts as worst and as best in turn, see `drop_test`.
    """
    import numpy

    chosen = anchor_pairs(pairs)
    if chosen is None:
        return None
    good = chosen.good
    return AnchorTest(
        anchors=chosen.n,
        reference_lost=int(numpy.nansum(chosen.reference[0] != good)),
        candidate_lost=int(
            (~numpy.isnan(chosen.candidate[0]) & (chosen.candidate[0] != good)).sum()
        ),
        test=drop_test(chosen),
    )
