"""List candidate slices of the samples of a task, the simplest first.

A fault of blocks of 8 tokens also shows in each rest modulo 16, 32 and so on, of which one may
stand out by chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from serve_eval.frozen import freeze
from serve_eval.schema import Response
from serve_eval.stats.no_worse import no_worse

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray, IntArray
    from serve_eval.stats.largest_statistic import BoolArray
    from serve_eval.workflows.diagnose.finding import AskedSample


BLOCKS = (16, 32, 64, 128, 256, 512)
"""Sizes in tokens that KV blocks and chunks of prompts have."""
LENGTHS = tuple(2**power for power in range(5, 18))
"""Thresholds of lengths, in tokens."""
TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
TWENTIETHS = tuple(part / 20 for part in range(1, 20))
MOST_VALUES, LONGEST_VALUE = 200, 60
"""Largest number of values of a piece of metadata, and of characters of a value."""
MOST_LOADS = 24
"""Largest number of different loads that are tested one by one."""

METADATA, WORKER, PAIR, CACHED, RESIDUE = "metadata", "worker", "pair", "cached", "residue"
LENGTH, LOAD, PLACE, STREAM = "length", "load", "place", "stream"
STOP, ANSWER_LENGTH, STEPS = "stop", "answer_length", "steps"
"""Kinds of slices."""


class Slice:
    """A slice: its kind, its description, and which samples are inside it, a bit for each.

    `edge` is the length beyond which a slice of lengths begins or ends, or the modulus of rests.
    """

    __slots__ = ("bits", "edge", "kind", "size", "told")

    def __init__(self, kind: str, told: str, inside: BoolArray, edge: int | None = None) -> None:
        import numpy

        self.kind, self.told, self.size, self.edge = kind, told, len(inside), edge
        self.bits = numpy.packbits(inside)

    @property
    def inside(self) -> BoolArray:
        """True for each sample inside the slice."""
        import numpy

        return numpy.unpackbits(self.bits, count=self.size).view(numpy.bool_)


@freeze
class KnownSamples:
    """The properties of the samples of a task, in the same order; None if unknown.

    `metadata` has values by name. `pairs` are the context and the generation server.
    """

    asked: Sequence[AskedSample]
    lengths: Sequence[int | None]
    metadata: Mapping[str, Sequence[str | None]]
    loads: Sequence[int | None]
    pairs: Sequence[tuple[str | None, str | None]]


def list_prompt_slices(known: KnownSamples, largest_block: int = BLOCKS[-1]) -> list[Slice]:
    """Return slices of prompts, and of answers by things that leave a healthy score alone.

    Lengths are divided by blocks of at most `largest_block` tokens.
    """
    found = (
        _list_metadata(known),
        _list_workers(known),
        _list_cached(known),
        _list_thresholds(LENGTH, "prompts of", known.lengths),
        _list_residues(known.lengths, largest_block),
        _list_loads(known.loads),
        _list_places(known.asked),
        _list_streamed(known.asked),
    )
    return _drop_equal(chain.from_iterable(found))


def list_answer_slices(
    asked: Sequence[AskedSample], before: Sequence[AskedSample]
) -> list[tuple[Slice, Slice]]:
    """Return slices of answers by their end and length: of `asked`, and of the reference."""
    sides = [[one.response for one in side] for side in (asked, before)]
    return [
        *_compare_stops(sides),
        *_compare_numbers(sides, ANSWER_LENGTH, "answers of", _count_tokens, LENGTHS, "tokens"),
        *_compare_numbers(
            sides, STEPS, "answers with", _read_steps, (1.0, 1.5, 2.0, 3.0, 4.0), "tokens per step"
        ),
    ]


def _drop_equal(slices: Iterable[Slice]) -> list[Slice]:
    """Return the slices without empty ones and those with the samples of a simpler one."""
    first: dict[bytes, Slice] = {}
    for one in slices:
        if one.bits.any():
            first.setdefault(one.bits.tobytes(), one)
    return list(first.values())


def _as_numbers(values: Iterable[float | None]) -> FloatArray:
    """Return numbers as an array, with NaN for unknown ones."""
    import numpy

    return numpy.array([math.nan if value is None else value for value in values], dtype=float)


def _as_codes(values: Sequence[Hashable]) -> tuple[dict[Hashable, int], IntArray]:
    """Return a number for each value, and the number of each sample's value."""
    import numpy

    codes = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return codes, numpy.array([codes[value] for value in values], dtype=numpy.int64)


def _list_metadata(known: KnownSamples) -> Iterator[Slice]:
    for name, values in known.metadata.items():
        codes, numbers = _as_codes(values)
        for value, code in codes.items():
            if value is not None:
                yield Slice(METADATA, f"samples with {name} {value!r}", numbers == code)


def list_usable(names: Mapping[str, Sequence[str | None]]) -> dict[str, Sequence[str | None]]:
    """Return the metadata with short values, of which several samples share some."""
    return {
        name: values
        for name, values in names.items()
        if 1 < len(given := {value for value in values if value is not None}) <= MOST_VALUES
        and 2 * len(given) <= len(values)
        and all(len(value) <= LONGEST_VALUE for value in given)
    }


def _list_workers(known: KnownSamples) -> Iterator[Slice]:
    for place, role in enumerate(("context", "generation")):
        codes, numbers = _as_codes([pair[place] for pair in known.pairs])
        names = sorted(str(name) for name in codes if name is not None)
        for name in names if len(names) > 1 else ():
            yield Slice(WORKER, f"answers of {role} server {name}", numbers == codes[name])
    codes, numbers = _as_codes(known.pairs)
    pairs = sorted({pair for pair in known.pairs if None not in pair}, key=str)
    for pair in pairs if len(pairs) > 1 else ():
        yield Slice(PAIR, f"answers of {pair[0]} together with {pair[1]}", numbers == codes[pair])


def _list_cached(known: KnownSamples) -> Iterator[Slice]:
    shares = _as_numbers(
        None
        if one.response is None or (cached := one.response.usage.cached_tokens) is None
        else cached / max(1, one.response.usage.prompt_tokens)
        for one in known.asked
    )
    yield Slice(CACHED, "prompts with tokens from the prefix cache", shares > 0.0)
    yield Slice(CACHED, "prompts without tokens from the prefix cache", shares == 0.0)
    for part in (0.25, 0.5, 0.75, 0.9):
        told = f"prompts with at least {part:.0%} of their tokens from the prefix cache"
        yield Slice(CACHED, told, shares >= part)


def describe_rest(rest: int, modulus: int) -> str:
    """Return the words for prompts whose length leaves a rest."""
    return f"prompts whose length leaves {rest} modulo {modulus}"


def _list_residues(lengths: Sequence[int | None], largest: int) -> Iterator[Slice]:
    numbers = _as_numbers(lengths)
    for size in (block for block in BLOCKS if block <= largest):
        rests = numbers % size
        for rest in sorted({int(rest) for rest in rests if not math.isnan(rest)}):
            yield Slice(RESIDUE, describe_rest(rest, size), rests == rest, size)
        for low, high in ((1, size // 8), (1, size // 2 - 1), (size - size // 8, size - 1)):
            told = f"prompts whose length leaves {low} to {high} modulo {size}"
            yield Slice(RESIDUE, told, (rests >= low) & (rests <= high), size)


def _list_thresholds(kind: str, what: str, values: Sequence[int | None]) -> Iterator[Slice]:
    known = sorted(value for value in values if value is not None)
    if not known:
        return
    numbers = _as_numbers(values)
    tenths = [known[int(tenth * (len(known) - 1))] for tenth in TENTHS]
    for least in dict.fromkeys((*LENGTHS, *tenths)):
        yield Slice(kind, f"{what} more than {least:,} tokens", numbers > least, least)
        yield Slice(kind, f"{what} at most {least:,} tokens", numbers <= least, least)


def _list_loads(loads: Sequence[int | None]) -> Iterator[Slice]:
    common = Counter(load for load in loads if load is not None)
    values, numbers = sorted(common), _as_numbers(loads)
    for load in values if len(values) <= 4 * MOST_LOADS else values[:: len(values) // MOST_LOADS]:
        told = f"samples sent with {load} or more requests in flight"
        yield Slice(LOAD, told, numbers >= load)
    for load, _ in common.most_common(MOST_LOADS):
        told = f"samples sent with exactly {load} requests in flight"
        yield Slice(LOAD, told, numbers == load)


def _list_places(asked: Sequence[AskedSample]) -> Iterator[Slice]:
    import numpy

    starts = _as_numbers(one.attempts[-1].start_s if one.attempts else None for one in asked)
    n = int((~numpy.isnan(starts)).sum())
    numbers = numpy.where(numpy.isnan(starts), math.nan, starts.argsort().argsort())
    for third, name in enumerate(("first", "second", "last")):
        inside = (numbers >= third * n // 3) & (numbers < (third + 1) * n // 3)
        yield Slice(PLACE, f"samples in the {name} third of the run", inside)
    for part_before in TWENTIETHS:
        start = int(part_before * n)
        yield Slice(PLACE, f"samples sent from number {start + 1:,} on", numbers >= start)


def _list_streamed(asked: Sequence[AskedSample]) -> Iterator[Slice]:
    streamed = _as_numbers(bool(one.attempts) and one.attempts[-1].streamed for one in asked)
    yield Slice(STREAM, "answers that were streamed", streamed > 0.0)
    yield Slice(STREAM, "answers that were not streamed", streamed == 0.0)


Sides = Sequence[Sequence[Response | None]]


def _compare_stops(sides: Sides) -> Iterator[tuple[Slice, Slice]]:
    reasons = [[_read_stop(one) for one in side] for side in sides]
    codes, numbers = _as_codes([*reasons[0], *reasons[1]])
    n = len(reasons[0])
    for reason in dict.fromkeys(reasons[0]):
        told, inside = f"answers that end with {reason}", numbers == codes[reason]
        yield Slice(STOP, told, inside[:n]), Slice(STOP, told, inside[n:])


def _read_stop(response: Response | None) -> str:
    if response is None:
        return "a failure"
    if response.stop_reason is not None:
        return f"the stop string {response.stop_reason!r}"
    return f"finish_reason {response.finish_reason}"


def _count_tokens(response: Response) -> float | None:
    return response.usage.completion_tokens or None


def _read_steps(response: Response) -> float | None:
    return response.tokens_per_step


def _compare_numbers(
    sides: Sides,
    kind: str,
    what: str,
    read: Callable[[Response], float | None],
    thresholds: Sequence[float],
    unit: str,
) -> Iterator[tuple[Slice, Slice]]:
    """Yield slices above and below each threshold."""
    after, before = (
        _as_numbers(None if one is None else read(one) for one in side) for side in sides
    )
    for least in thresholds:
        told = f"{what} more than {least:,} {unit}"
        yield Slice(kind, told, after > least), Slice(kind, told, before > least)
        told = f"{what} at most {least:,} {unit}"
        yield Slice(kind, told, after <= least), Slice(kind, told, before <= least)


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
