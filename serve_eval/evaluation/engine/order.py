"""In which order samples are started. Pure. No order changes what is asked."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache

from serve_eval.schema import Order, Prompt, Sample


def task_seed(seed: int, task: str) -> str:
    """Give each task of a run an order of its own out of the run's seed."""
    return f"{seed}:order:{task}"


def arrange(
    samples: Sequence[Sample], positions: Iterable[int], order: Order, seed: str
) -> array[int]:
    """The positions in the order in which their samples are to be started; ties stay as the
    protocol has them.

    `longest` goes by the length of the target: where targets are worked solutions, as in GSM8K, the
    answers will be long where they are. `random` gives the same order for the same seed, and of
    some of the positions what remains of that of all.
    """
    chosen = array("q", positions)
    if order == "random":
        places = _shuffle(len(samples), seed)
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


@lru_cache(maxsize=1)
def _shuffle(count: int, seed: str) -> array[int]:
    """All positions in a random order. A run asks for its order twice in a row: for the starts and
    for the alarm.
    """
    places = array("q", range(count))
    random.Random(seed).shuffle(places)
    return places


def _text(prompt: Prompt) -> str:
    return (
        prompt
        if isinstance(prompt, str)
        else "\0".join(turn.role + "\0" + turn.text for turn in prompt)
    )
