"""Find the smallest modulus by which the rest of a prompt's length explains a loss.

A fault of blocks of 8 tokens also shows in each rest modulo 16, 32 and so on, of which one may
stand out by chance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from serve_eval.stats.hypergeometric import no_worse
from serve_eval.workflows.diagnose.candidates import RESIDUE, Slice, describe_rest

if TYPE_CHECKING:
    from serve_eval.stats.inputs import IntArray

SMALLEST = 2
LEAST_SHARE, LEVEL = 0.5, 0.05
"""Least share of the loss per sample inside a slice that samples with the same rest by a smaller
modulus have, and the level at which they must not lose less."""


def reduce_modulus(one: Slice, lengths: Sequence[int | None], fell: Collection[int]) -> Slice:
    """Return the slice of the rest by the smallest modulus that explains the loss as well.

    `fell` are the places of the samples that lost score. A smaller modulus explains it if the
    samples that it adds lose about as often as those inside.
    """
    import numpy

    if one.kind != RESIDUE or one.edge is None:
        return one
    numbers = numpy.array([math.nan if value is None else value for value in lengths])
    lost = numpy.zeros(len(lengths), dtype=numpy.int64)
    lost[list(fell)] = 1
    inside = one.inside
    rests = set((numbers[inside] % one.edge).tolist())
    if len(rests) > 1:
        return one
    rest = int(rests.pop())
    modulus = SMALLEST
    while modulus < one.edge:
        wider = numbers % modulus == rest % modulus
        if _lose_alike(lost[inside], lost[wider & ~inside]):
            return Slice(RESIDUE, describe_rest(rest % modulus, modulus), wider, modulus)
        modulus *= 2
    return one


def _lose_alike(inside: IntArray, added: IntArray) -> bool:
    """Return True if added samples lose about as often as those inside."""
    lost, more = int(inside.sum()), int(added.sum())
    if more * len(inside) < LEAST_SHARE * lost * len(added):
        return False
    return no_worse([(len(inside), lost, len(added), more)]) > LEVEL
