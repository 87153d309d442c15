"""Read a task of a run once, for its samples' places and answers drawn for pictures.

A sample takes about 50 bytes, so that a million of them fit into little memory. What pictures draw
comes from the same reading.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from heapq import heapify, heappushpop
from operator import attrgetter, itemgetter
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

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
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.scores import read_scores_at, scan_scores

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


CUT = "right, but cut off"
CATEGORIES = (*RANKS, "partly right", CUT, RIGHT)
"""The categories of samples, in the order in which samples are shown."""
_CATEGORY_OF = np.array(
    [
        CATEGORIES.index(CUT if cut and word == RIGHT else word)
        for word in (WORDS[outcome] for outcome in OUTCOMES)
        for cut in (False, True)
    ],
    dtype=np.uint8,
)
"""The category of each outcome, of a whole answer and of one that was cut off."""
_MIX, _WORD = 2_654_435_761, 0xFFFFFFFF
"""2^32 over the golden ratio, made odd: it spreads the checksums of ids that count."""
_REPEAT = re.compile(r"#(\d+)$")

BLOCK = 1 << 16
"""Samples that are compared together, so that what is in between takes little memory."""


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """Samples, or prompts, by ascending key, which is the hash of their id in this process.

    `order` draws them by chance. `category` is the place in CATEGORIES of the worst answer, `first`
    that of the first answer, and `value` the score of that (NaN: none). `rows` and `repeats` are
    the keys of the prompts and the numbers of the repeats, of samples of repeated prompts.
    """

    keys: Keys
    order: NDArray[np.uint32]
    category: NDArray[np.uint8]
    first: NDArray[np.uint8]
    value: NDArray[np.float64]
    rows: Keys | None = None
    repeats: Keys | None = None


def order_by_chance(name: str) -> int:
    """Return a number of 32 bits by which ids are drawn, the same on every machine."""
    return crc32(name.encode(errors="surrogatepass")) * _MIX & _WORD


class SampleIndex:
    """All samples of a task of one run. Raises RunFolderError for a damaged file.

    `rows` are its prompts, and `answers` counts its samples. `drawn` are at most `most_drawn` of
    those with a request, in the order of their starts, and `requests` counts these. `values` are
    the lowest three scores that differ.
    """

    def __init__(self, source: SampleSource, most_drawn: int = MOST_DRAWN) -> None:
        self.source = source
        self._scores, self._records = _Places(source), _Places(source)
        scored, outcomes = _scan_scores(source, self._scores)
        draw = AnswerDraw(most_drawn)
        self._counts = _scan_journal(source, self._records, draw)
        keys = self._records.take("keys")
        rest, asked = _match(scored.keys, keys, self._counts)
        self.requests = asked + len(np.unique(keys[rest]))
        self.drawn = draw.list_answers(self._counts, scored.keys, outcomes)
        self.values = _lowest(scored.value)
        samples = _add_unscored(scored, self._records, rest, self._counts)
        self._records.drop_order()
        self.answers = len(samples.keys)
        self.rows = _join_repeats(samples) if source.repeated else samples

    def read(self, rows: Keys | None = None) -> dict[str, ShownSample]:
        """Return everything about the samples of these rows by id, or of all of them."""
        scores, records, source = self._scores, self._records, self.source
        lines, counting = scores.take("offsets"), self._counts >= LOST
        if rows is not None:
            lines = lines[_among(scores.take("rows"), rows)]
            counting &= _among(records.take("rows"), rows)
        at = records.take("offsets")[counting]
        found = read_scores_at(source.run, source.task, lines.tolist()) if len(lines) else ()
        file = samples_file(source.run, source.task)
        return join_samples(
            source,
            {one.id: one for one in found},
            journal.read_at(file, at.tolist()) if len(at) else (),
        )

    def forget_places(self) -> None:
        """Free what is known of each sample, once the shown ones are read; the drawn ones stay."""
        del self._scores, self._records, self._counts, self.rows


class _Places:
    """The ids of the lines of a file: keys, the rows they belong to, repeats and offsets."""

    def __init__(self, source: SampleSource) -> None:
        self._repeated = source.repeated
        self._arrays = {"keys": array("q"), "offsets": array("q"), "order": array("I")}
        if source.repeated:
            self._arrays |= {"rows": array("q"), "repeats": array("q")}
        self._add_key = self._arrays["keys"].append
        self._add_offset = self._arrays["offsets"].append
        self._add_order = self._arrays["order"].append

    def add(self, name: str, offset: int) -> int:
        """Add the sample of the next line, which begins at `offset` bytes; return its order."""
        self._add_key(hash(name))
        self._add_offset(offset)
        if self._repeated:
            found = _REPEAT.search(name)
            self._arrays["repeats"].append(0 if found is None else int(found[1]))
            name = name if found is None else name[: found.start()]
            self._arrays["rows"].append(hash(name))
        order = crc32(name.encode(errors="surrogatepass")) * _MIX & _WORD
        self._add_order(order)
        return order

    def take(self, name: str) -> NDArray[np.int64]:
        """Return a column; rows are samples where nothing is repeated."""
        column = self._arrays["keys" if not self._repeated and name == "rows" else name]
        return np.frombuffer(column, np.uint32 if name == "order" else np.int64)

    def drop_order(self) -> array[int]:
        """Return the orders and keep them no longer; no line is added after that."""
        del self._add_order
        return self._arrays.pop("order")

    def tell_repeats(self, places: NDArray[np.intp]) -> dict[str, Keys]:
        """Return the rows and repeats of some lines, if prompts are repeated."""
        names = ("rows", "repeats") if self._repeated else ()
        return {name: self.take(name)[places] for name in names}


def _scan_scores(source: SampleSource, places: _Places) -> tuple[RowTable, NDArray[np.uint8]]:
    """Read the scores once; return the samples that have one, and the numbers of their outcomes."""
    codes, values = bytearray(), array("d")
    code_of = {outcome: 2 * i for i, outcome in enumerate(OUTCOMES)}
    for offset, line in scan_scores(source.run, source.task):
        places.add(line.id, offset)
        codes.append(code_of[line.outcome] + line.truncated)
        values.append(line.value)
    last, order = _last_of_each(places.take("keys")), places.drop_order()
    code = np.frombuffer(codes, np.uint8)[last]
    category = _CATEGORY_OF[code]
    table = RowTable(
        keys=places.take("keys")[last],
        order=np.frombuffer(order, np.uint32)[last],
        category=category,
        first=category,
        value=np.frombuffer(values)[last],
        **places.tell_repeats(last),
    )
    return table, code // 2


def _scan_journal(source: SampleSource, records: _Places, draw: AnswerDraw) -> NDArray[np.int8]:
    """Read the journal once, and return what each line counts as."""
    file = samples_file(source.run, source.task)
    counts, gone = array("b"), dict[int, int]()
    for number, (offset, record) in enumerate(journal.scan(file) if file.exists() else ()):
        order = records.add(record.id, offset)
        if record.withdrawn is not None:
            gone[hash(record.id)] = number
            counts.append(WITHDRAWN)
            continue
        counts.append(LOST if record.response is None else ANSWERED)
        draw.add(number, record, order)
    found = np.frombuffer(counts, np.int8)
    if gone:
        last = np.array([gone.get(key, -1) for key in records.take("keys").tolist()])
        taken_back = (found == ANSWERED) & (np.arange(len(found)) < last)
        found = np.where(taken_back, np.int8(WITHDRAWN), found)
    return found


def _last_of_each(keys: Keys) -> NDArray[np.intp]:
    """Return the place of the last of each key, by ascending keys."""
    order = np.argsort(keys, kind="stable")
    ends = np.ones(len(keys), bool)
    for start in range(0, len(keys) - 1, BLOCK):
        ranked = keys[order[start : start + BLOCK + 1]]
        ends[start : start + len(ranked) - 1] = ranked[1:] != ranked[:-1]
    return order if ends.all() else order[ends]


def _among(keys: Keys, few: Keys) -> NDArray[np.bool_]:
    """Return which keys are among a few. `np.isin` sorts all of them, in forty bytes for each."""
    found, few = np.zeros(len(keys), bool), np.sort(few)
    for start in range(0, len(keys) if len(few) else 0, BLOCK):
        some = keys[start : start + BLOCK]
        places = np.minimum(np.searchsorted(few, some), len(few) - 1)
        found[start : start + BLOCK] = few[places] == some
    return found


def _lowest(values: NDArray[np.float64]) -> frozenset[float]:
    """Return the lowest three values that differ."""
    lowest = np.empty(0)
    for start in range(0, len(values), BLOCK):
        lowest = np.unique(np.append(lowest, values[start : start + BLOCK]))[:3]
    return frozenset(lowest.tolist())


def _match(known: Keys, keys: Keys, counts: NDArray[np.int8]) -> tuple[NDArray[np.intp], int]:
    """Return the counting lines of samples without a score, and how many scored ones have a line.

    `known` are the ascending keys of the scored samples.
    """
    asked, rest = np.zeros(len(known), bool), []
    for start in range(0, len(keys), BLOCK):
        some = keys[start : start + BLOCK]
        places = np.minimum(np.searchsorted(known, some), max(0, len(known) - 1))
        scored = known[places] == some if len(known) else np.zeros(len(some), bool)
        counting = counts[start : start + BLOCK] >= LOST
        asked[places[scored & counting]] = True
        rest.append(start + np.flatnonzero(~scored & counting))
    return np.concatenate([np.empty(0, np.intp), *rest]), int(asked.sum())


def _add_unscored(
    scored: RowTable, records: _Places, rest: NDArray[np.intp], counts: NDArray[np.int8]
) -> RowTable:
    """Return the samples with those that have no score, whose lines are `rest`."""
    if not len(rest):
        return scored
    keys, first, group = np.unique(
        records.take("keys")[rest], return_index=True, return_inverse=True
    )
    answered = np.zeros(len(first), bool)
    answered[group[counts[rest] == ANSWERED]] = True
    category = np.where(answered, RANKS.index(UNSCORED), RANKS.index(FAILED)).astype(np.uint8)
    lines, at = rest[first], np.searchsorted(scored.keys, keys)
    merged = {
        name: np.insert(getattr(scored, name), at, column)
        for name, column in records.tell_repeats(lines).items()
    }
    category = np.insert(scored.category, at, category)
    return RowTable(
        keys=np.insert(scored.keys, at, keys),
        order=np.insert(scored.order, at, records.take("order")[lines]),
        category=category,
        first=category,
        value=np.insert(scored.value, at, np.nan),
        **merged,
    )


def _join_repeats(samples: RowTable) -> RowTable:
    """Return the prompts of samples, whose first answer is that of the lowest repeat."""
    assert samples.rows is not None
    assert samples.repeats is not None
    places = np.lexsort((samples.repeats, samples.rows))
    rows, category = samples.rows[places], samples.category[places]
    starts = np.flatnonzero(np.append(np.ones(min(1, len(rows)), bool), rows[1:] != rows[:-1]))
    first = places[starts]
    return RowTable(
        keys=rows[starts],
        order=samples.order[first],
        category=np.minimum.reduceat(category, starts) if len(rows) else category,
        first=category[starts],
        value=samples.value[first],
    )
