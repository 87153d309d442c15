"""Tell a damaged model from another one by the answers that became right and wrong.

Another model is right or wrong on its own. It then loses answers wherever the reference is right,
such as on short prompts, and gains where the reference is wrong: a slice that loses more than
others may only be one in which the reference is better. Both functions take what the reference
answers as given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serve_eval.stats.permuted_losses import compute_permuted_p

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

MOST_STRATA = 4
"""Strata of the reference's scores: its values if there are no more, else quarters."""
LEAST_GAINED, LEAST_RATIO = 5, 0.75
"""Least number of answers that turned right, and of the rate at which they do to the rate of right
answers elsewhere, from which a candidate is like another model."""


def reject_other_model(
    reference: FloatArray,
    change: FloatArray,
    inside: Any,
    draws: int,
    random: numpy.random.Generator,
    clusters: ArrayLike | None = None,
) -> FloatArray:
    """Return each slice's p of losing no more than by another model, adjusted for all slices.

    `reference` has the mean score of each prompt, `change` its loss. The losses are permuted among
    prompts of about the same score of the reference, which also covers the same damage everywhere.
    Prompts of one of the `clusters` stay together.
    """
    return compute_permuted_p(change, inside, _stratify(reference), draws, random, clusters)[0]


def is_like_another(was_right: ArrayLike, is_right: ArrayLike) -> bool:
    """Return True if wrong answers of the reference turned right almost as often as others stayed.

    Both have one value per prompt: True for a right answer of the reference, or of the candidate.
    """
    import numpy

    before, after = numpy.asarray(was_right, dtype=bool), numpy.asarray(is_right, dtype=bool)
    gained, wrong = int((after & ~before).sum()), int((~before).sum())
    kept, right = int((after & before).sum()), int(before.sum())
    return gained >= LEAST_GAINED and gained * right >= LEAST_RATIO * kept * wrong


def _stratify(scores: FloatArray) -> IntArray:
    """Return the number of the stratum of each score."""
    import numpy

    values, codes = numpy.unique(scores, return_inverse=True)
    if len(values) <= MOST_STRATA:
        return numpy.asarray(codes)
    ends = numpy.quantile(scores, numpy.arange(1, MOST_STRATA) / MOST_STRATA)
    return numpy.asarray(numpy.unique(numpy.searchsorted(ends, scores), return_inverse=True)[1])
