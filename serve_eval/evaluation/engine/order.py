"""Order the starts of samples. Pure: no order changes the questions."""

from __future__ import annotations

import random
from array import array
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import chain

from serve_eval.plan.shard import ShardPart
from serve_eval.schema import Order, Prompt, Sample


def task_seed(seed: int, task: str) -> str:
    """Return the seed for the order of one task, derived from the run's seed."""
    return f"{seed}:order:{task}"


def arrange(
    samples: Sequence[Sample],
    positions: Iterable[int],
    order: Order,
    seed: str,
    part: ShardPart | None = None,
) -> array[int]:
    """Return the positions in the order in which their samples start.

    Ties keep the order of the protocol. `longest` sorts by the length of the target: for targets
    that are worked solutions, as in GSM8K, long targets mean long answers. `random` gives the same
    order for the same seed. For some of the positions, it is the order of all positions without the
    others. If the samples are a `part` of those of a run, repeated as a whole any number of times,
    it is the order of the whole run without the others.
    """
    chosen = array("q", positions)
    if order == "random":
        places = (
            _shuffle(len(samples), seed)
            if part is None
            else _shuffle_part(part, len(samples), seed)
        )
        if len(chosen) == len(samples):
            return places[:]
        wanted = bytearray(len(samples))
        for i in chosen:
            wanted[i] = 1
        return array("q", (i for i in places if wanted[i]))
    if order == "prefix":
        return array("q", sorted(chosen, key=lambda i: _text(samples[i].prompt)))
    if order == "longest":
        return array("q", sorted(chosen, key=lambda i: -len(samples[i].target)))
    return chosen


def list_group_keys(samples: Sequence[Sample]) -> list[Hashable] | None:
    """Return a key per sample, the same for samples of one group; None if no two share one."""
    from serve_eval.stats.clusters import cluster_keys

    return cluster_keys([sample.group for sample in samples])


def arrange_groups(keys: Sequence[Hashable], seed: str) -> tuple[array[int], array[int]]:
    """Return the positions by groups in a random order, and the sizes of the groups in that order.

    Positions of one key are a group. They follow each other in the order of the protocol, so that a
    server can use the text that they share again. The same seed gives the same order.
    """
    groups: dict[Hashable, array[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, array("q")).append(place)
    members = list(groups.values())
    drawn = [members[i] for i in _shuffle(len(members), seed)]
    return array("q", chain.from_iterable(drawn)), array("q", map(len, drawn))


@lru_cache(maxsize=1)
def _shuffle(count: int, seed: str) -> array[int]:
    """Return all positions in a random order.

    The cache serves a run that needs its order twice in a row: for the starts and for the alarm.
    """
    places = array("q", range(count))
    random.Random(seed).shuffle(places)
    return places


def forget_order() -> None:
    """Free the order of the last run, so that it does not stay while its page is made."""
    _shuffle.cache_clear()


def _shuffle_part(part: ShardPart, count: int, seed: str) -> array[int]:
    """Return all `count` positions of a part in the random order of the whole run."""
    size, repeats = len(part.places), count // len(part.places)
    here = array("q", [-1]) * (repeats * part.total)
    for i in range(count):
        here[part.places[i % size] + i // size * part.total] = i
    return array("q", (here[place] for place in _shuffle(len(here), seed) if here[place] >= 0))


def _text(prompt: Prompt) -> str:
    return (
        prompt
        if isinstance(prompt, str)
        else "\0".join(turn.role + "\0" + turn.text for turn in prompt)
    )
