"""Test exactly whether all workers are alike.

With the margins of a table fixed, that number is hypergeometric (Fisher 1934). Over several tables
or blocks the distribution of the sum is the convolution of theirs.

Answers to one prompt resemble each other, and a router that hashes prompts gives all of them to one
worker. So prompts are permuted, not answers: under "all are alike", which prompts a worker got is
unrelated to how hard they are, and which of the workers of a prompt had which answers is too. A
repeat then makes the result of its prompt more precise, and is no evidence of its own.

Each worker of a prompt counts with as many answers as the worker with the fewest has, so that their
numbers of bad answers are exchangeable, however unevenly the router deals. Prompts are permuted
within classes of the same group, number of workers and number of answers for each.

The distribution of the sum over a random choice of prompts is that over independent draws, given
the number drawn (Hájek 1964). Both come from one characteristic function, which is inverted by a
discrete Fourier transform (Davies 1973).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    ComplexArray = NDArray[numpy.complex128]


_Part = tuple[int, "NDArray[numpy.float64]"]
"""A random number: its least value, and the probabilities of that and the values above it."""


def no_worse(tables: Iterable[tuple[int, int, int, int]]) -> float:
    """Return P(at least as many bad answers as observed | all alike).

    The tables are (answers, bad, others, others bad). The result is exact: the distribution of the
    sum is the convolution of one hypergeometric distribution per table. It is 1 if no table has
    answers of both sides, some bad and some not. Raises ServeEvalError for counts that do not make
    a table.
    """
    import numpy
    from scipy.special import gammaln

    parts, seen = list[_Part](), 0
    for answers, bad, others, others_bad in tables:
        if not (0 <= bad <= answers and 0 <= others_bad <= others):
            raise ServeEvalError(
                f"{bad} of {answers} and {others_bad} of {others} do not make a table"
            )
        total = bad + others_bad
        low, high = max(0, total - others), min(answers, total)
        seen += bad
        k = numpy.arange(low, high + 1, dtype=float)
        # C(answers, k) C(others, total - k), up to a factor
        logs = (
            -gammaln(k + 1)
            - gammaln(answers - k + 1)
            - gammaln(total - k + 1)
            - gammaln(others - total + k + 1)
        )
        one = numpy.exp(logs - logs.max())
        parts.append((low, one / one.sum()))
    return _at_least(seen, parts)


def no_worse_in_blocks(blocks: Iterable[Sequence[int]]) -> float:
    """Return the same probability as `no_worse` if several workers got the same prompts.

    A block has each worker's number of bad answers, the tested worker's first. Under "all alike"
    each of these numbers is equally likely to be the tested worker's.
    """
    import numpy

    parts, seen = list[_Part](), 0
    for block in blocks:
        low = min(block)
        seen += block[0]
        parts.append((low, numpy.bincount(numpy.array(block) - low) / len(block)))
    return _at_least(seen, parts)


def _at_least(seen: int, parts: Iterable[_Part]) -> float:
    """Return P(a sum of independent numbers is at least `seen`)."""
    import numpy

    chances, least = numpy.ones(1), 0
    for low, one in parts:
        least += low
        if len(one) > 1:
            chances = numpy.convolve(chances, one)
    return 1.0 if seen <= least else min(1.0, float(chances[seen - least :].sum()))


LEAST_P = 1e-12
"""Smallest p that is returned: the transform is no more precise."""
REACH = 20.0
"""Width of the computed range of a sum, in standard deviations; less than LEAST_P lies beyond."""
CHEAP, NEAR = 2_000_000, 2.0
"""Terms that are always computed. Of more, a sum within NEAR standard deviations of its mean gets
the p of the normal distribution: no level is that large."""
AT_ONCE = 250_000
"""Terms in memory at once."""


class AnsweredPrompt(NamedTuple):
    """The answers to one prompt: by worker, whether each is bad, in the order they were asked.

    Only prompts of one `group` are compared.
    """

    group: Hashable
    bad: Mapping[Hashable, Sequence[bool]]


@dataclass(slots=True)
class _Class:
    """Prompts that are permuted. `kinds` counts them by the bad answers of their workers."""

    kinds: Counter[tuple[int, ...]]
    drawn: int = 0

    @property
    def prompts(self) -> int:
        return self.kinds.total()


def no_worse_by_prompt(prompts: Iterable[AnsweredPrompt], worker: Hashable) -> float:
    """Return P(a worker has at least as many bad answers as observed | all are alike).

    It is at least LEAST_P, and 1 if the worker shares no class of prompts with others.
    """
    classes: dict[Hashable, _Class] = defaultdict(lambda: _Class(Counter()))
    seen = 0
    for one in prompts:
        each = min(map(len, one.bad.values()))
        counts = {name: sum(flags[:each]) for name, flags in one.bad.items()}
        found = classes[one.group, len(counts), each]
        found.kinds[tuple(sorted(counts.values()))] += 1
        if worker in counts:
            found.drawn += 1
            seen += counts[worker]
    return _chance_of_at_least(seen, [one for one in classes.values() if one.drawn])


def _chance_of_at_least(seen: int, classes: Sequence[_Class]) -> float:
    """Return the probability that the sum over all classes is at least `seen`."""
    moments = [_moments(one) for one in classes]
    mean, variance = (
        (math.fsum(values) for values in zip(*moments, strict=True))
        if moments
        else (
            0.0,
            0.0,
        )
    )
    if variance <= 1e-12:  # nothing is left to chance
        return 1.0
    sd = math.sqrt(variance)
    most = sum(one.drawn * max(map(max, one.kinds)) for one in classes)
    width = min(most + 1, math.ceil(REACH * sd) + 2)
    low = max(0, min(most + 1 - width, round(mean - width / 2)))
    if seen <= low:
        return 1.0
    if seen >= low + width:
        return LEAST_P
    terms = width * sum(_count_draws(one) * len(one.kinds) for one in classes)
    if terms > CHEAP and seen <= mean + NEAR * sd:
        return 0.5 * math.erfc((seen - 0.5 - mean) / (sd * math.sqrt(2.0)))
    chances = _invert(classes, low, width)
    return min(1.0, max(LEAST_P, float(chances[seen - low :].sum())))


def _moments(one: _Class) -> tuple[float, float]:
    """Return the mean and the variance of the sum of a class."""
    means = [(math.fsum(kind) / len(kind), count) for kind, count in one.kinds.items()]
    n = one.prompts
    mean = math.fsum(value * count for value, count in means) / n
    between = math.fsum(count * (value - mean) ** 2 for value, count in means) / n
    squares = math.fsum(
        count * math.fsum(value**2 for value in kind) / len(kind)
        for kind, count in one.kinds.items()
    )
    within = max(0.0, squares / n - mean**2 - between)
    left = (n - one.drawn) / (n - 1) if n > 1 else 0.0
    return one.drawn * mean, one.drawn * (within + left * between)


def _count_draws(one: _Class) -> int:
    """Return the number of frequencies that tell apart how many prompts were drawn."""
    share = one.drawn / one.prompts
    return min(one.prompts + 1, math.ceil(REACH * math.sqrt(one.prompts * share * (1 - share))) + 3)


def _invert(classes: Sequence[_Class], low: int, width: int) -> NDArray[numpy.float64]:
    """Return the probabilities of the sums from `low` on, `width` of them."""
    import numpy

    half = width // 2 + 1
    waves = numpy.ones(half, dtype=complex)
    for one in classes:
        draws = _count_draws(one)
        block = max(1, AT_ONCE // draws)
        for start in range(0, half, block):
            places = numpy.arange(start, min(start + block, half))
            waves[places] *= _transform(one, draws, 2.0 * math.pi * places / width)
    # The sum is taken modulo `width`, so that each of them has the place of one in the range.
    chances: NDArray[numpy.float64] = numpy.roll(numpy.fft.irfft(numpy.conj(waves), n=width), -low)
    return chances


def _transform(one: _Class, draws: int, angles: NDArray[numpy.float64]) -> ComplexArray:
    """Return the characteristic function of the sum of a class, at some angles."""
    import numpy

    share = one.drawn / one.prompts
    turns = numpy.exp(2j * math.pi * numpy.arange(draws) / draws)[:, None]
    found: ComplexArray = numpy.exp(-2j * math.pi * numpy.arange(draws) * one.drawn / draws)[
        :, None
    ]
    alone = found.copy()
    for kind, count in one.kinds.items():
        of_prompt = numpy.exp(1j * numpy.multiply.outer(angles, kind)).mean(axis=1)
        found = found * (1.0 - share + share * turns * of_prompt) ** count
        alone = alone * (1.0 - share + share * turns) ** count
    sums: ComplexArray = found.sum(axis=0) / alone.sum()
    return sums
