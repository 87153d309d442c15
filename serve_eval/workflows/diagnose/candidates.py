"""Candidate slices of the samples of a task, the simplest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from serve_eval.schema import Response

if TYPE_CHECKING:
    from serve_eval.workflows.diagnose.evidence import AskedSample

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


class Slice(NamedTuple):
    """A slice: its kind, its description, and the numbers of the samples inside it."""

    kind: str
    told: str
    inside: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The properties of the samples of a task, in the same order; None if unknown.

    `metadata` has values by name. `pairs` are the context and the generation server.
    """

    asked: Sequence[AskedSample]
    lengths: Sequence[int | None]
    metadata: Mapping[str, Sequence[str | None]]
    loads: Sequence[int | None]
    pairs: Sequence[tuple[str | None, str | None]]


def list_prompt_slices(known: Known, largest_block: int = BLOCKS[-1]) -> list[Slice]:
    """Return slices of prompts, and of answers by what a healthy server does not tie to scores.

    Lengths are divided by blocks of at most `largest_block` tokens.
    """
    found = [
        *_list_metadata(known),
        *_list_workers(known),
        *_list_cached(known),
        *_list_thresholds(LENGTH, "prompts of", known.lengths),
        *_list_residues(known.lengths, largest_block),
        *_list_loads(known.loads),
        *_list_places(known.asked),
        _select(
            STREAM,
            "answers that were streamed",
            (bool(one.attempts) and one.attempts[-1].streamed for one in known.asked),
        ),
    ]
    return _drop_equal(found)


def list_answer_slices(
    asked: Sequence[AskedSample], before: Sequence[AskedSample]
) -> list[tuple[Slice, Slice]]:
    """Return slices by what comes with the score of an answer: of `asked`, and of the reference."""
    sides = [[one.response for one in side] for side in (asked, before)]
    return [
        *_compare_stops(sides),
        *_compare_numbers(sides, ANSWER_LENGTH, "answers of", _count_tokens, LENGTHS, "tokens"),
        *_compare_numbers(
            sides, STEPS, "answers with", _read_steps, (1.0, 1.5, 2.0, 3.0, 4.0), "tokens per step"
        ),
    ]


def _select(kind: str, told: str, inside: Iterator[bool]) -> Slice:
    return Slice(kind, told, frozenset(i for i, one in enumerate(inside) if one))


def _drop_equal(slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices without empty ones and those with the samples of a simpler one."""
    first: dict[frozenset[int], Slice] = {}
    for one in slices:
        if one.inside:
            first.setdefault(one.inside, one)
    return list(first.values())


def _list_metadata(known: Known) -> Iterator[Slice]:
    for name, values in known.metadata.items():
        for value in dict.fromkeys(value for value in values if value is not None):
            yield _select(
                METADATA, f"samples with {name} {value!r}", (one == value for one in values)
            )


def list_usable(names: Mapping[str, Sequence[str | None]]) -> dict[str, Sequence[str | None]]:
    """Return the metadata with short values, of which several samples share some."""
    return {
        name: values
        for name, values in names.items()
        if 1 < len(given := {value for value in values if value is not None}) <= MOST_VALUES
        and 2 * len(given) <= len(values)
        and all(len(value) <= LONGEST_VALUE for value in given)
    }


def _list_workers(known: Known) -> Iterator[Slice]:
    for place, role in enumerate(("context", "generation")):
        names = {pair[place] for pair in known.pairs} - {None}
        if len(names) > 1:
            for name in sorted(filter(None, names)):
                told = f"answers of {role} server {name}"
                yield _select(WORKER, told, (pair[place] == name for pair in known.pairs))
    pairs = {pair for pair in known.pairs if None not in pair}
    if len(pairs) > 1:
        for both in sorted(pairs, key=str):
            told = f"answers of {both[0]} together with {both[1]}"
            yield _select(PAIR, told, (pair == both for pair in known.pairs))


def _list_cached(known: Known) -> Iterator[Slice]:
    shares = [
        None
        if one.response is None or (cached := one.response.usage.cached_tokens) is None
        else cached / max(1, one.response.usage.prompt_tokens)
        for one in known.asked
    ]
    some = "prompts with tokens from the prefix cache"
    yield _select(CACHED, some, (share is not None and share > 0.0 for share in shares))
    none = "prompts without tokens from the prefix cache"
    yield _select(CACHED, none, (share == 0.0 for share in shares))
    for part in (0.25, 0.5, 0.75, 0.9):
        told = f"prompts with at least {part:.0%} of their tokens from the prefix cache"
        yield _select(CACHED, told, (share is not None and share >= part for share in shares))


def _list_residues(lengths: Sequence[int | None], largest: int) -> Iterator[Slice]:
    for size in (block for block in BLOCKS if block <= largest):
        rests: dict[int, set[int]] = {}
        for i, length in enumerate(lengths):
            if length is not None:
                rests.setdefault(length % size, set()).add(i)
        for rest in sorted(rests):
            told = f"prompts whose length leaves {rest} modulo {size}"
            yield Slice(RESIDUE, told, frozenset(rests[rest]))
        for low, high in ((1, size // 8), (1, size // 2 - 1), (size - size // 8, size - 1)):
            told = f"prompts whose length leaves {low} to {high} modulo {size}"
            inside = (i for rest in range(low, high + 1) for i in rests.get(rest, ()))
            yield Slice(RESIDUE, told, frozenset(inside))


def _list_thresholds(kind: str, what: str, numbers: Sequence[int | None]) -> Iterator[Slice]:
    known = sorted(number for number in numbers if number is not None)
    if not known:
        return
    tenths = [known[int(tenth * (len(known) - 1))] for tenth in TENTHS]
    for least in dict.fromkeys((*LENGTHS, *tenths)):
        above = (number is not None and number > least for number in numbers)
        yield _select(kind, f"{what} more than {least:,} tokens", above)
        below = (number is not None and number <= least for number in numbers)
        yield _select(kind, f"{what} at most {least:,} tokens", below)


def _list_loads(loads: Sequence[int | None]) -> Iterator[Slice]:
    common = Counter(load for load in loads if load is not None)
    values = sorted(common)
    for load in values if len(values) <= 4 * MOST_LOADS else values[:: len(values) // MOST_LOADS]:
        told = f"samples sent with {load} or more requests in flight"
        yield _select(LOAD, told, (one is not None and one >= load for one in loads))
    for load, _ in common.most_common(MOST_LOADS):
        told = f"samples sent with exactly {load} requests in flight"
        yield _select(LOAD, told, (one == load for one in loads))


def _list_places(asked: Sequence[AskedSample]) -> Iterator[Slice]:
    sent = [i for i, one in enumerate(asked) if one.attempts]
    order = sorted(sent, key=lambda i: asked[i].attempts[-1].start_s)
    n = len(order)
    for third, name in enumerate(("first", "second", "last")):
        part = order[third * n // 3 : (third + 1) * n // 3]
        yield Slice(PLACE, f"samples in the {name} third of the run", frozenset(part))
    for part_before in TWENTIETHS:
        start = int(part_before * n)
        told = f"samples sent from number {start + 1:,} on"
        yield Slice(PLACE, told, frozenset(order[start:]))


Sides = Sequence[Sequence[Response | None]]


def _compare_stops(sides: Sides) -> Iterator[tuple[Slice, Slice]]:
    reasons = [[_read_stop(one) for one in side] for side in sides]
    for reason in dict.fromkeys(filter(None, reasons[0])):
        told = f"answers that end with {reason}"
        pair = [_select(STOP, told, (one == reason for one in side)) for side in reasons]
        yield pair[0], pair[1]


def _read_stop(response: Response | None) -> str | None:
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
    numbers = [[None if one is None else read(one) for one in side] for side in sides]
    for least in thresholds:
        for above, word in ((True, "more than"), (False, "at most")):
            told = f"{what} {word} {least:,} {unit}"
            pair = [
                _select(kind, told, (n is not None and (n > least) is above for n in side))
                for side in numbers
            ]
            if pair[0].inside:
                yield pair[0], pair[1]
