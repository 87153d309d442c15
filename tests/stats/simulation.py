"""Simulate endpoints: per prompt the chance of a right answer, and runs drawn from it.

The functions are pure; the caller seeds them.

Prompts are a mixture: a share 3 * flip rate is right with a chance drawn uniformly from 0..1, the
others are always right or always wrong. Two draws of an unsure prompt differ with probability 1/3,
so that two runs of one endpoint disagree with the flip rate. Rows of an array are independent
endpoints, columns are prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray, IntArray

    Shape = int | tuple[int, ...]


def endpoints(
    random: numpy.random.Generator, shape: Shape, *, flip_rate: float, accuracy: float = 0.7
) -> FloatArray:
    """Return the chance of a right answer per prompt, `accuracy` on average.

    Raises ValueError if no such mixture exists.
    """
    unsure = 3.0 * flip_rate
    if not (0.0 <= unsure <= 1.0 and unsure / 2.0 <= accuracy <= 1.0 - unsure / 2.0):
        raise ValueError(f"no mixture has the flip rate {flip_rate} and the accuracy {accuracy}")
    sure = (accuracy - unsure / 2.0) / (1.0 - unsure) if unsure < 1.0 else 0.0
    certain = (random.random(shape) < sure).astype(numpy.float64)
    return numpy.where(random.random(shape) < unsure, random.random(shape), certain)


def altered(
    random: numpy.random.Generator,
    chances: FloatArray,
    *,
    to_wrong: float = 0.0,
    to_right: float = 0.0,
) -> FloatArray:
    """Return an endpoint on which some answers differ for good.

    Of all prompts, a share `to_wrong` that was always right is now always wrong (a regression), and
    a share `to_right` the reverse. If both are equal, much changes and nothing gets worse.

    Raises ValueError if too few prompts are certain.
    """
    result = chances.copy()
    for share, now in ((to_wrong, 1.0), (to_right, 0.0)):
        certain = chances == now
        there = float(certain.mean())
        if share > there:
            raise ValueError(
                f"{share} of the prompts cannot be turned: {there} of them are certain"
            )
        if share:
            result[certain & (random.random(chances.shape) < share / there)] = 1.0 - now
    return result


def shifted(random: numpy.random.Generator, chances: FloatArray, sd: float) -> FloatArray:
    """Return the chances of one run that moves as a whole.

    All logits are shifted by one normal number of spread `sd`.
    """
    if not sd:
        return chances
    factor = numpy.exp(random.normal(0.0, sd))
    return chances * factor / (1.0 - chances + chances * factor)


def run(random: numpy.random.Generator, chances: FloatArray) -> FloatArray:
    """Draw one run: 1 for each prompt that was answered right, 0 for the others."""
    return (random.random(chances.shape) < chances).astype(numpy.float64)


def turned(reference: FloatArray, candidate: FloatArray) -> tuple[IntArray, IntArray]:
    """Count per row the prompts that went from right to wrong and from wrong to right."""
    difference = candidate - reference
    return (difference < 0.0).sum(axis=-1), (difference > 0.0).sum(axis=-1)


def chance_below(n: int, down: float, up: float, limit: float) -> float:
    """Return P(number up - number down of n prompts < `limit`).

    A prompt goes down and up with these chances. Exact up to rounding: the n-th power of the
    characteristic function of one prompt.
    """
    size = 2 * n + 1
    one = numpy.zeros(size)
    one[[0, 1, -1]] = 1.0 - down - up, up, down
    chances = numpy.fft.ifft(numpy.fft.fft(one) ** n).real
    changes = numpy.fft.fftfreq(size, 1.0 / size)
    return float(chances[changes < limit].sum())
