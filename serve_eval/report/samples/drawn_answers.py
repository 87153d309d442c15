"""Draw answers for pictures by chance, while a journal is read once."""

from __future__ import annotations

from heapq import heapify, heappushpop
from operator import attrgetter, itemgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from serve_eval.schema import Outcome
from serve_eval.storage import journal

MOST_DRAWN = 20_000
"""Answers of a task that pictures draw."""
OUTCOMES = list(Outcome)
WITHDRAWN, LOST, ANSWERED = -1, 0, 1
"""The codes of a line of a journal that counts as nothing, as a failure, as an answer."""

Keys = NDArray[np.int64]


class DrawnAnswer(msgspec.Struct, frozen=True, gc=False):
    """The figures of an answer that pictures show.

    `outcome` is None for a request that failed, and for an answer without a score. `tokens` is 0
    if the server does not count them.
    """

    outcome: str | None
    started_s: float
    latency_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens: int = 0
    characters: int = 0


class AnswerDraw:
    """The answers that pictures draw, taken by chance where there are more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[int, int, int, DrawnAnswer]] = []

    def add(self, number: int, record: journal.ScannedRecord, order: int) -> None:
        """Take the record of line `number`, or leave it if the `order` of others is lower."""
        full = len(self._kept) >= self._most
        if full and -order <= self._kept[0][0]:
            return
        one, failure = record.response, record.failure
        if one is None:
            drawn = DrawnAnswer(None, 0.0 if failure is None else failure.started_s)
        else:
            drawn = DrawnAnswer(
                None,
                one.started_s,
                one.latency_s,
                one.ttft_s,
                one.tpot_s,
                one.usage.completion_tokens,
                len(one.text) + len(one.reasoning or ""),
            )
        entry = (-order, number, hash(record.id), drawn)
        if full:
            heappushpop(self._kept, entry)
            return
        self._kept.append(entry)
        if len(self._kept) == self._most:
            heapify(self._kept)

    def list_answers(
        self, counts: NDArray[np.int8], known: Keys, outcomes: NDArray[np.uint8]
    ) -> list[DrawnAnswer]:
        """Return the answers in the order of their starts, each with its outcome.

        `counts` says which lines count; `known` are the ascending keys of scores, and `outcomes`
        their places in the list of outcomes.
        """
        found: dict[int, DrawnAnswer] = {}
        for _, number, key, drawn in sorted(self._kept, key=itemgetter(1)):
            if counts[number] == ANSWERED:
                found[key] = drawn
            elif counts[number] == LOST:
                found.setdefault(key, drawn)
        keys = np.fromiter(found, np.int64, len(found))
        places = np.searchsorted(known, keys)
        answers = [
            msgspec.structs.replace(one, outcome=OUTCOMES[outcomes[place]])
            if place < len(known) and known[place] == key
            else one
            for (key, one), place in zip(found.items(), places.tolist(), strict=True)
        ]
        return sorted(answers, key=attrgetter("started_s"))
