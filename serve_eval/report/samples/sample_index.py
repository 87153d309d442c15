"""Read a task of a run once, and know of each sample its outcome, score and places in the files.

A sample takes about 50 bytes, so that a million of them fit into little memory. What pictures draw
comes from the same reading.
"""

from __future__ import annotations

import re
import zlib
from array import array
from dataclasses import dataclass
from heapq import heapify, heappushpop
from operator import attrgetter, itemgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from serve_eval.evaluation.storage import journal
from serve_eval.evaluation.storage.file_names import samples_file
from serve_eval.evaluation.storage.records.scores import read_scores_at, scan_scores
from serve_eval.report.samples.samples import (
    FAILED,
    RANKS,
    RIGHT,
    UNSCORED,
    WORDS,
    SampleSource,
    ShownSample,
    join_samples,
)
from serve_eval.schema import Outcome

MOST_DRAWN = 20_000
"""Answers of a task that pictures draw."""
CUT = "right, but cut off"
CATEGORIES = (*RANKS, "partly right", CUT, RIGHT)
"""What a sample is shown as, in the order in which samples are shown."""
_OUTCOMES = list(Outcome)
_CATEGORY_OF = np.array(
    [
        CATEGORIES.index(CUT if cut and word == RIGHT else word)
        for word in (WORDS[outcome] for outcome in _OUTCOMES)
        for cut in (False, True)
    ],
    dtype=np.uint8,
)
"""The category of each outcome, of a whole answer and of one that was cut off."""
_MIX, _WORD = 2_654_435_761, 0xFFFFFFFF
"""2^32 over the golden ratio, made odd: it spreads the checksums of ids that count."""
_REPEAT = re.compile(r"#(\d+)$")

WITHDRAWN, LOST, ANSWERED = -1, 0, 1
"""What a line of a journal counts as: nothing, a failure, an answer."""

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


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """The prompts of a task by ascending key, the hash of their id in this process.

    `order` draws them by chance. `category` is the place in CATEGORIES of the worst answer, `first`
    that of the first answer, and `value` the score of that (NaN: none).
    """

    keys: Keys
    order: NDArray[np.uint32]
    category: NDArray[np.uint8]
    first: NDArray[np.uint8]
    value: NDArray[np.float64]


def order_by_chance(name: str) -> int:
    """Return a number of 32 bits by which ids are drawn, the same on every machine."""
    return zlib.crc32(name.encode(errors="surrogatepass")) * _MIX & _WORD


class SampleIndex:
    """All samples of a task of one run. Raises RunFolderError for a damaged file.

    `rows` are its prompts, and `answers` counts its samples. `drawn` are at most `most_drawn` of
    those with a request, in the order of their starts, and `requests` counts these. `values` are
    the lowest three scores that differ.
    """

    def __init__(self, source: SampleSource, most_drawn: int = MOST_DRAWN) -> None:
        self.source = source
        scores, codes, values = _Places(source), bytearray(), array("d")
        code_of = {outcome: 2 * i for i, outcome in enumerate(_OUTCOMES)}
        for offset, line in scan_scores(source.run, source.task):
            scores.add(line.id, offset)
            codes.append(code_of[line.outcome] + line.truncated)
            values.append(line.value)
        draw, records = _Draw(most_drawn), _Places(source)
        counts = _scan_journal(source, records, draw)
        self._scores, self._records = scores, records
        self._counting = np.flatnonzero(counts >= 0)

        last = _last_of_each(scores.take("keys"))
        known = scores.take("keys")[last]
        rest, answered = _list_unscored(known, records.take("keys"), counts)
        self._keys = np.concatenate([known, records.take("keys")[rest]])
        self.answers = len(self._keys)
        self.requests = len(np.unique(records.take("keys")[self._counting]))
        unscored = np.where(answered, RANKS.index(UNSCORED), RANKS.index(FAILED))
        category = np.concatenate(
            [_CATEGORY_OF[np.frombuffer(codes, np.uint8)[last]], unscored.astype(np.uint8)]
        )
        value = np.concatenate([np.frombuffer(values)[last], np.full(len(rest), np.nan)])
        parts = {
            name: np.concatenate([scores.take(name)[last], records.take(name)[rest]])
            for name in ("rows", "order", "repeats")
        }
        self.rows = _group(category=category, value=value, **parts)
        self.values = frozenset(np.unique(value[: len(known)])[:3].tolist())
        outcomes = np.frombuffer(codes, np.uint8)[last] // 2
        self.drawn = draw.list_answers(counts, known, outcomes)

    def read(self, rows: Keys | None = None) -> dict[str, ShownSample]:
        """Return everything about the samples of these rows by id, or of all of them."""
        scores, records, source = self._scores, self._records, self.source
        lines, at = scores.take("offsets"), records.take("offsets")[self._counting]
        if rows is not None:
            lines = lines[np.isin(scores.take("rows"), rows)]
            at = at[np.isin(records.take("rows")[self._counting], rows)]
        found = read_scores_at(source.run, source.task, lines.tolist()) if len(lines) else ()
        file = samples_file(source.run, source.task)
        return join_samples(
            source,
            {one.id: one for one in found},
            journal.read_at(file, at.tolist()) if len(at) else (),
        )


class _Places:
    """The ids of the lines of a file: keys, the rows they belong to, repeats and offsets."""

    def __init__(self, source: SampleSource) -> None:
        self._repeated = source.repeated
        self._arrays = {"keys": array("q"), "offsets": array("q"), "order": array("I")}
        if source.repeated:
            self._arrays |= {"rows": array("q"), "repeats": array("q")}

    def add(self, name: str, offset: int) -> None:
        """Add the sample of the next line, which begins at `offset` bytes."""
        arrays, base = self._arrays, name
        arrays["keys"].append(hash(name))
        arrays["offsets"].append(offset)
        if self._repeated:
            found = _REPEAT.search(name)
            base = name if found is None else name[: found.start()]
            arrays["rows"].append(hash(base))
            arrays["repeats"].append(0 if found is None else int(found[1]))
        arrays["order"].append(order_by_chance(base))

    def take(self, name: str) -> NDArray[np.int64]:
        """Return a column; rows are samples where nothing is repeated."""
        if not self._repeated and name == "repeats":
            return np.zeros(len(self._arrays["keys"]), np.int64)
        column = self._arrays["keys" if not self._repeated and name == "rows" else name]
        return np.frombuffer(column, np.uint32 if name == "order" else np.int64)


class _Draw:
    """The answers that pictures draw, taken by chance where there are more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[int, int, int, DrawnAnswer]] = []

    def add(self, number: int, record: journal.ScannedRecord) -> None:
        """Take the record of line `number`, or leave it."""
        order = -order_by_chance(record.id)
        full = len(self._kept) >= self._most
        if full and order <= self._kept[0][0]:
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
        entry = (order, number, hash(record.id), drawn)
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
            msgspec.structs.replace(one, outcome=_OUTCOMES[outcomes[place]])
            if place < len(known) and known[place] == key
            else one
            for (key, one), place in zip(found.items(), places.tolist(), strict=True)
        ]
        return sorted(answers, key=attrgetter("started_s"))


def _scan_journal(source: SampleSource, records: _Places, draw: _Draw) -> NDArray[np.int8]:
    """Read the journal once, and return what each line counts as."""
    file = samples_file(source.run, source.task)
    counts, gone = array("b"), dict[int, int]()
    for number, (offset, record) in enumerate(journal.scan(file) if file.exists() else ()):
        records.add(record.id, offset)
        if record.withdrawn is not None:
            gone[hash(record.id)] = number
            counts.append(WITHDRAWN)
            continue
        counts.append(LOST if record.response is None else ANSWERED)
        draw.add(number, record)
    found = np.frombuffer(counts, np.int8)
    if gone:
        last = np.array([gone.get(key, -1) for key in records.take("keys").tolist()])
        taken_back = (found == ANSWERED) & (np.arange(len(found)) < last)
        found = np.where(taken_back, np.int8(WITHDRAWN), found)
    return found


def _last_of_each(keys: Keys) -> NDArray[np.intp]:
    """Return the place of the last of each key, by ascending keys."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    last: NDArray[np.intp] = order[
        np.append(ranked[1:] != ranked[:-1], np.ones(min(1, len(keys)), bool))
    ]
    return last


def _list_unscored(
    known: Keys, keys: Keys, counts: NDArray[np.int8]
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return a line of each sample that is not among the `known`, and whether it was answered."""
    places = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
    scored = known[places] == keys if len(known) else np.zeros(len(keys), bool)
    rest = np.flatnonzero(~scored & (counts >= LOST))
    _, first, group = np.unique(keys[rest], return_index=True, return_inverse=True)
    answered = np.zeros(len(first), bool)
    answered[group[counts[rest] == ANSWERED]] = True
    return rest[first], answered


def _group(
    *,
    rows: Keys,
    repeats: Keys,
    order: NDArray[np.uint32],
    category: NDArray[np.uint8],
    value: NDArray[np.float64],
) -> RowTable:
    """Join the samples of each row. The columns have an entry per sample."""
    places = np.lexsort((repeats, rows))
    rows, category = rows[places], category[places]
    starts = np.flatnonzero(np.append(np.ones(min(1, len(rows)), bool), rows[1:] != rows[:-1]))
    first = places[starts]
    return RowTable(
        keys=rows[starts],
        order=order[first],
        category=np.minimum.reduceat(category, starts) if len(rows) else category,
        first=category[starts],
        value=value[first],
    )
