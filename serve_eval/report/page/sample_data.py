"""Turn the samples of a run, or of both arms of a comparison, into a page's section.

A row is a prompt, with its answers in each arm. Rows have the order of their ids; `order` is the
one in which they are shown first: what needs attention comes first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from serve_eval.evaluation.results.examples import order_ids
from serve_eval.frozen import freeze
from serve_eval.report.page.chosen import FELL, ROSE, SAME, TaskRows, choose_rows, join_arms
from serve_eval.report.page.columns import (
    AnswerColumns,
    PageMedia,
    PromptColumn,
    TextColumn,
    compress,
    encode,
    to_json,
)
from serve_eval.report.page.content import ScriptData
from serve_eval.report.samples.known import KnownTask
from serve_eval.report.samples.sample_index import Keys, SampleIndex
from serve_eval.report.samples.samples import NOT_KEPT, SampleSource, ShownSample, rank_outcome
from serve_eval.report.summary.rows import name_expected
from serve_eval.schema import Metric, Response
from serve_eval.verdicts.reference_samples import as_stored

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_SAMPLES = 5000
"""Answers of an arm that a page shows, unless the plan wants another number."""
MOST_VALUES = 500
"""Different values of a field from which it does not filter samples."""


@freeze
class PageTask:
    """A task of a page: its arms by label, and what its data set adds.

    `know` returns what the data set knows of the prompts with these ids (None: it is not there).
    `url` is the address that was asked, "" if none was, and `key` the variable with its key.
    """

    name: str
    arms: Mapping[str, SampleSource]
    metric: Metric
    know: Callable[[Container[str]], KnownTask | None] = lambda ids: None
    url: str = ""
    key: str = ""


@dataclass
class _Row:
    """A prompt with its answers by arm, the first repeat first; `order` is that of its id."""

    task: int
    id: str
    order: tuple[tuple[int, str], ...]
    answers: dict[str, list[ShownSample]] = field(default_factory=dict)

    @property
    def last(self) -> Sequence[ShownSample]:
        """The answers of the arm that is judged."""
        *_, last = self.answers.values()
        return last

    @cached_property
    def any(self) -> ShownSample:
        """The sample that tells what was asked."""
        every = _every(self)
        return next((one for one in every if one.prompt is not None), every[-1])


class SampleData:
    """The samples of a page, read once, and turned into columns with or without long texts.

    Of each arm, at most `most` answers are shown; `total` counts the prompts that there are. The
    page is in `folder`, and links media below it (None: it links none). `known` has what the data
    sets know, by task, and `indexes` what pictures draw of all samples, by task and label.
    """

    def __init__(
        self, tasks: Sequence[PageTask], folder: Path | None = None, *, most: int = MOST_SAMPLES
    ) -> None:
        self._tasks, self._folder = tasks, folder
        self._labels = list(dict.fromkeys(label for task in tasks for label in task.arms))
        self.indexes = {
            task.name: {label: SampleIndex(source) for label, source in task.arms.items()}
            for task in tasks
        }
        joined = [_join(list(self.indexes[task.name].values())) for task in tasks]
        self._sides = {task.name: one.sides for task, one in zip(tasks, joined, strict=True)}
        self.total = sum(len(one.keys) for one in joined)
        chosen = choose_rows(joined, most)
        del joined
        self._rows: list[_Row] = []
        self.known: dict[str, KnownTask | None] = {}
        for i, (task, keys) in enumerate(zip(tasks, chosen, strict=True)):
            rows = _read_rows(i, task, self.indexes[task.name], keys)
            for index in self.indexes[task.name].values():
                index.forget_places()
            self.known[task.name] = task.know({row.id for row in rows})
            self._rows += rows
        self._flips = [self._find_flip(row) for row in self._rows]

    def measure_longest(self) -> tuple[int, int]:
        """Return the lengths of the longest text of an answer, and of a prompt."""
        every = [one for row in self._rows for one in _every(row)]
        answers = (
            len(text or "")
            for one in every
            for said in [one.response]
            for text in (one.expected, one.extracted, *(() if said is None else _texts(said)))
        )
        prompts = (
            len(text)
            for one in (row.any.prompt for row in self._rows)
            for text in ([one] if isinstance(one, str) else [turn.text for turn in one or ()])
        )
        return max(answers, default=0), max(prompts, default=0)

    def __len__(self) -> int:
        return len(self._rows)

    def count_sides(self, task: str) -> Mapping[tuple[str, str], int]:
        """Return how often the first answers of the arms were right, wrong or missing together."""
        return self._sides[task]

    def to_json(self, answers: int | None, prompts: int | None) -> dict[str, object]:
        """Return the data for a script. Texts have at most these numbers of characters."""
        rows, labels = self._rows, self._labels
        asked, expected, wanted = PromptColumn(prompts), TextColumn(answers), TextColumn(answers)
        columns = AnswerColumns(labels, answers)
        choices: dict[int, list[str]] = {}
        media = PageMedia(self._folder)
        sources = [[one.run for one in task.arms.values()] for task in self._tasks]
        for place, row in enumerate(rows):
            one = row.any
            asked.add(one.prompt)
            media.add(place, one.prompt, sources[row.task])
            target = next((s.expected for s in _every(row) if s.expected is not None), None)
            if target is not None:
                expected.add(place, target)
                wanted.add(place, name_expected(self._tasks[row.task].name, target))
            if one.choices:
                choices[place] = list(one.choices)
            for label, samples in row.answers.items():
                for sample in samples:
                    columns.add(place, label, sample)
        return {
            "arms": labels,
            "tasks": [_describe_task(task, self.known[task.name]) for task in self._tasks],
            "task": [row.task for row in rows],
            "id": [row.id for row in rows],
            "order": sorted(range(len(rows)), key=self._rank),
            "prompts": asked.to_json(),
            "choices": choices,
            "media": media.to_json(),
            "hidden": [i for i, row in enumerate(rows) if row.any.prompt_hidden],
            "unkept": [i for i, row in enumerate(rows) if row.any.prompt_note == NOT_KEPT],
            "expected": expected.to_json(len(rows)),
            "wanted": wanted.to_json(len(rows)),
            "cut_prompts": asked.cut,
            "fields": self._list_fields(),
            "bodies": self._list_bodies(),
            "before": [self._find_before(row) for row in rows] if self._referenced else None,
            "flip": self._flips,
            "answers": columns.to_json(),
            "shortened": len(asked.cut) + expected.shortened + columns.shortened,
        }

    @property
    def _referenced(self) -> bool:
        return any(one is not None and one.reference for one in self.known.values())

    def _know(self, row: _Row) -> KnownTask | None:
        return self.known[self._tasks[row.task].name]

    def _find_before(self, row: _Row) -> tuple[float | None, ...] | None:
        """Return the scores of the reference's runs."""
        known = self._know(row)
        if known is None or known.reference is None:
            return None
        scores = known.reference.scores.get(row.id)
        return None if scores is None else tuple(None if math.isnan(s) else s for s in scores)

    def _find_flip(self, row: _Row) -> int:
        """Return the change of the first score from A to B, or from the reference's first run."""
        now = _value(row.last)
        if len(self._labels) > 1:
            before = _value(row.answers.get(self._labels[0], ()))
            now = _value(row.answers.get(self._labels[-1], ()))
        else:
            known = self._know(row)
            reference = None if known is None else known.reference
            if reference is None or now is None:
                return 0
            before = next(iter(self._find_before(row) or ()), None)
            now = as_stored(now, reference.lo, reference.hi)
        if before is None or now is None:
            return 0
        return SAME if now == before else FELL if now < before else ROSE

    def _rank(self, place: int) -> tuple[object, ...]:
        """Return the sort key of a row: of a comparison, what changed comes first."""
        row, flip = self._rows[place], self._flips[place]
        first = (FELL, ROSE, SAME, 0).index(flip) if len(self._labels) > 1 else 0
        return first, min(rank_outcome(s.outcome, cut_off=s.cut_off) for s in row.last), row.order

    def _list_fields(self) -> list[dict[str, object]]:
        """Return the columns of metadata with more than one value, but not too many to choose."""
        names = dict.fromkeys(
            name for known in self.known.values() for name in (known.fields if known else ())
        )
        found = []
        for name in names:
            column = TextColumn()
            for place, row in enumerate(self._rows):
                known = self._know(row)
                value = None if known is None else known.fields.get(name, {}).get(row.id)
                if value is not None:
                    column.add(place, value)
            if column.different > 1:
                choose = column.different <= MOST_VALUES
                found.append(
                    {"name": name, "choose": choose, **(column.to_json(len(self._rows)) or {})}
                )
        return found

    def _list_bodies(self) -> dict[int, object]:
        """Return the requests that differ from those of their task."""
        found: dict[int, object] = {}
        for place, row in enumerate(self._rows):
            known = self._know(row)
            if known is not None and row.id in known.bodies:
                found[place] = known.bodies[row.id]
        return found


def _join(indexes: Sequence[SampleIndex]) -> TaskRows:
    return join_arms(indexes[0].rows, indexes[-1].rows, max(one.answers for one in indexes))


def _read_rows(
    number: int, task: PageTask, indexes: Mapping[str, SampleIndex], keys: Keys | None
) -> list[_Row]:
    rows: dict[str, _Row] = {}
    for label, source in task.arms.items():
        samples = indexes[label].read(keys)
        for name in sorted(samples, key=order_ids) if source.repeated else samples:
            if (row := rows.get(base := source.base(name))) is None:
                row = rows[base] = _Row(number, base, order_ids(base))
            row.answers.setdefault(label, []).append(samples[name])
    return sorted(rows.values(), key=attrgetter("order"))


def _every(row: _Row) -> list[ShownSample]:
    first, *others = row.answers.values()
    return [*first, *(one for several in others for one in several)] if others else first


def _texts(response: Response) -> Iterator[str | None]:
    yield from (response.text, response.reasoning, response.refusal)
    yield from (call.arguments for call in response.tool_calls)


def _value(samples: Sequence[ShownSample]) -> float | None:
    return samples[0].value if samples else None


def _describe_task(task: PageTask, known: KnownTask | None) -> dict[str, object]:
    return {
        "name": task.name,
        "higher": task.metric.higher_is_better,
        "url": task.url,
        "key": task.key if _VARIABLE.fullmatch(task.key) else "",
        "body": None if known is None else known.body,
    }


LIMITS: Sequence[tuple[int | None, int | None]] = (
    (None, None),
    (16_000, None),
    (4_000, 64_000),
    (1_000, 16_000),
    (400, 2_000),
    (100, 400),
)
"""Most characters of an answer and of a prompt, tried one after the other."""
SOME = (
    "Each outcome has a share of the places, what went wrong the largest; within an outcome, chance"
    " decided. serve-eval show prints the others, and --set limits.page_samples=N puts more"
    " of them here."
)
"""The caption of the table on a page with only some of the samples."""
MOST_BYTES, MOST_UNPACKED = 10_000_000, 100_000_000
"""Compressed and whole size of the data from which texts are shortened, in bytes."""
SCRIPTS = (
    "dom.js",
    "samples.js",
    "filters.js",
    "controls.js",
    "sample_table.js",
    "differences.js",
    "sample_view.js",
    "export.js",
    "keys.js",
    "start.js",
)
"""Scripts of the samples, in their order."""


def show_samples(data: SampleData, *, most_bytes: int = MOST_BYTES) -> ScriptData | None:
    """Return the section, or None if no sample was sent.

    If the data is larger than `most_bytes`, texts lose their middle, and the page says so.
    """
    if not len(data):
        return None
    some = len(data) < data.total
    packed = b""
    for limits in _choose_limits(data):
        whole = to_json(data.to_json(*limits))
        if len(whole) > MOST_UNPACKED and limits != LIMITS[-1]:
            continue
        if len(packed := compress(whole)) <= most_bytes:
            break
    return ScriptData(
        title=f"Samples: {len(data):,} of {data.total:,}" if some else "Samples",
        name="samples",
        value=encode(packed),
        scripts=SCRIPTS,
        caption=SOME if some else "",
        note="The table of samples needs JavaScript. serve-eval show prints the same.",
    )


def _choose_limits(data: SampleData) -> Iterator[tuple[int | None, int | None]]:
    """Yield the limits that shorten a text, after those that keep all; always the last ones."""
    yield LIMITS[0]
    longest = data.measure_longest()
    for limits in LIMITS[1:]:
        cuts = (
            most is not None and most < size for most, size in zip(limits, longest, strict=True)
        )
        if limits == LIMITS[-1] or any(cuts):
            yield limits
