"""Choose samples of a run folder, or those that flipped against another run, and read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evidence.answer_texts import part
from serve_eval.evidence.whole_answer import join_text
from serve_eval.frozen import freeze
from serve_eval.plugins import extensions
from serve_eval.plugins.registry import find_closest
from serve_eval.plugins.scope import with_scope
from serve_eval.report.samples.known import ReferenceScores, prepare_again, score_reference
from serve_eval.report.samples.samples import (
    FAILED,
    UNSCORED,
    SampleRow,
    SampleSource,
    ShownSample,
    find_matches,
    list_rows,
    read_samples,
)
from serve_eval.schema import Parting
from serve_eval.storage.report_file import find_report
from serve_eval.verdicts.reference_samples import as_stored
from serve_eval.workflows.show.folders import ChosenRun, find_runs

SCHEMA_VERSION = 1
MOST_SAMPLES = 3
"""Samples that are read in full by default."""


@freeze
class Selection:
    """The samples to show.

    `wrong` and `failed` add up; all other conditions must hold as well. `most` is the number of
    samples to show (None: all as rows, and a few in full); `everything` has no limit. `brief`: none
    is read in full.
    """

    ids: tuple[str, ...] = ()
    wrong: bool = False
    failed: bool = False
    flips: bool = False
    grep: str | None = None
    task: str | None = None
    most: int | None = None
    everything: bool = False
    brief: bool = False

    @property
    def any(self) -> bool:
        """True if it chooses some of the samples."""
        return bool(self.ids or self.wrong or self.failed or self.flips or self.grep is not None)

    def choose_rows(self, rows: list[SampleRow]) -> list[SampleRow]:
        """Return the rows to show of those that were found."""
        return rows if self.everything or self.most is None else rows[: self.most]

    def choose_whole(self, rows: list[SampleRow]) -> list[SampleRow]:
        """Return the rows of the samples to read in full."""
        if self.brief:
            return []
        if self.everything or self.most is not None or self.ids:
            return self.choose_rows(rows)
        return rows[:MOST_SAMPLES]

    def takes(self, row: SampleRow, source: SampleSource, matches: set[str] | None) -> bool:
        """Return True for a sample that meets every condition but `flips`."""
        if self.ids and row.id not in self.ids and source.base(row.id) not in self.ids:
            return False
        if matches is not None and row.id not in matches:
            return False
        if self.wrong or self.failed:
            lost = row.outcome in (FAILED, UNSCORED)
            return (self.wrong and row.wrong) or (self.failed and lost)
        return True


@freeze
class ShownRun:
    """The chosen samples of a run folder, the most important ones first.

    `found` samples were chosen, of `asked` ones, and `outcomes` counts them. Each has a row; some
    are whole, as `samples`, or as `pairs` if two runs are compared: `a` is then the other run, and
    `rows_of_a` its rows. `fell` and `rose` count the flips (None: not compared).
    """

    schema_version: int = SCHEMA_VERSION
    run: str
    a: str | None = None
    asked: int
    found: int
    outcomes: Mapping[str, int]
    fell: int | None = None
    rose: int | None = None
    rows: tuple[SampleRow, ...] = ()
    rows_of_a: tuple[SampleRow, ...] = ()
    samples: tuple[ShownSample, ...] = ()
    pairs: tuple[FlippedPair, ...] = ()


@dataclass(slots=True)
class _Flips:
    """The ids of flips by task, and their numbers."""

    ids: dict[str, set[str]]
    fell: int = 0
    rose: int = 0

    def add(self, task: str, fell: Sequence[str], rose: Sequence[str]) -> None:
        self.ids[task] = {*fell, *rose}
        self.fell, self.rose = self.fell + len(fell), self.rose + len(rose)


@with_scope
def show(
    folder: Path,
    selection: Selection,
    *,
    against: Path | None = None,
    include_path: Sequence[str] = (),
) -> ShownRun:
    """Return the chosen samples of a run, or of both runs of a comparison.

    Raises RunFolderError for a folder that holds no run or several, and PlanError for a sample or a
    task that it does not have, a wrong `include_path`, or if flips cannot be found.
    """
    extensions.include(include_path)
    runs = find_runs(folder, against)
    if len(runs) == 2:
        return _show_pairs(runs[0], runs[1], selection)
    [run] = runs
    sources = run.sources(selection.task)
    flips, before = None, dict[tuple[str, str], tuple[float, ...]]()
    if selection.flips:
        flips = _Flips({})
        for source in sources:
            reference = read_reference(run, source, include_path)
            fell, rose = list_reference_flips(source, reference)
            flips.add(source.task, fell, rose)
            for name in (*fell, *rose):
                before[source.task, name] = reference.scores[source.base(name)]
    asked, rows = _choose(sources, selection, flips)
    samples = _read(sources, selection.choose_whole(rows)) if selection.any else []
    return ShownRun(
        run=str(run.folder),
        asked=asked,
        found=len(rows),
        outcomes=_count(rows),
        fell=None if flips is None else flips.fell,
        rose=None if flips is None else flips.rose,
        rows=tuple(selection.choose_rows(rows)),
        samples=tuple(
            msgspec.structs.replace(one, reference=before.get((one.task, one.id), ()))
            for one in samples
        ),
    )


def _show_pairs(a: ChosenRun, b: ChosenRun, selection: Selection) -> ShownRun:
    of_a = {source.task: source for source in a.sources(selection.task)}
    sources = [source for source in b.sources(selection.task) if source.task in of_a]
    if not sources:
        raise PlanError(f"{a.folder} and {b.folder} have no task in common")
    flips = _Flips({})
    for source in sources:
        flips.add(source.task, *list_flips(of_a[source.task], source))
    alone = not (selection.ids or selection.wrong or selection.failed or selection.grep is not None)
    asked, rows = _choose(sources, selection, flips if alone or selection.flips else None)
    whole, shown = selection.choose_whole(rows), selection.choose_rows(rows)
    before = {(one.task, one.id): one for one in _read(list(of_a.values()), whole)}
    pairs = tuple(pair_samples(before[one.task, one.id], one) for one in _read(sources, whole))
    rows_of_a = {(row.task, row.id): row for one in of_a.values() for row in list_rows(one)}
    return ShownRun(
        run=str(b.folder),
        a=str(a.folder),
        asked=asked,
        found=len(rows),
        fell=flips.fell,
        rose=flips.rose,
        outcomes=_count(rows),
        rows=tuple(shown),
        rows_of_a=tuple(
            rows_of_a.get((row.task, row.id)) or SampleRow(task=row.task, id=row.id, outcome=FAILED)
            for row in shown
        ),
        pairs=pairs,
    )


def _count(rows: Sequence[SampleRow]) -> dict[str, int]:
    """Return how many rows have which outcome, in their order."""
    words = (f"{row.outcome} and cut off" if row.cut_off else row.outcome for row in rows)
    return dict(Counter(words))


def _choose(
    sources: Sequence[SampleSource], selection: Selection, flips: _Flips | None
) -> tuple[int, list[SampleRow]]:
    """Return the number of samples that were sent, and the rows of the chosen ones."""
    known: list[str] = []
    chosen: list[SampleRow] = []
    for source in sources:
        rows = list_rows(source)
        known += [row.id for row in rows]
        matches = None if selection.grep is None else find_matches(source, selection.grep)
        chosen += [
            row
            for row in rows
            if selection.takes(row, source, matches)
            and (flips is None or row.id in flips.ids[source.task])
        ]
    for name in selection.ids:
        if name not in known:
            raise PlanError(f"no sample {name!r} was sent.{_name_close(name, known)}")
    return len(known), sorted(chosen, key=lambda row: row.rank)


def _name_close(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the ids that resemble a name."""
    unique = list(dict.fromkeys(known))
    inside = [one for one in unique if name in one][:3]
    close = inside or find_closest(name, unique, most=3)
    if not close:
        return f" Some that were: {', '.join(unique[:3])}." if unique else " None was."
    return f" Did you mean {' or '.join(map(repr, close))}?"


def _read(sources: Sequence[SampleSource], rows: Sequence[SampleRow]) -> list[ShownSample]:
    """Return the samples of rows, in their order."""
    found = {}
    for source in sources:
        if names := [row.id for row in rows if row.task == source.task]:
            for name, sample in read_samples(source, names).items():
                found[source.task, name] = sample
    return [found[row.task, row.id] for row in rows]


AGAINST = "Compare it with another run: serve-eval show RUN --against OTHER."


@freeze
class FlippedPair:
    """A prompt with the samples of A and B, and the place at which their answers part.

    `parts_at` is None if one of them is missing or hidden, or if the answers are equal. It is a
    place in the answers to the turn `turn` of a conversation, counted from 0.
    """

    a: ShownSample
    b: ShownSample
    parts_at: Parting | None
    turn: int | None = None


def pair_samples(a: ShownSample, b: ShownSample) -> FlippedPair:
    """Return two answers to a prompt, with the place at which they part."""
    if a.response is None or b.response is None:
        return FlippedPair(a=a, b=b, parts_at=None)
    for one, other in zip(a.exchanges, b.exchanges, strict=False):
        place = part(join_text(one.response), join_text(other.response))
        if place is not None:
            return FlippedPair(a=a, b=b, parts_at=place, turn=one.turn)
    return FlippedPair(a=a, b=b, parts_at=part(join_text(a.response), join_text(b.response)))


def list_flips(a: SampleSource, b: SampleSource) -> tuple[list[str], list[str]]:
    """Return the prompts whose score fell from A to B, and those whose score rose.

    "Fell" means for a metric of which more is better.
    """
    before, after = a.scores(), b.scores()
    both = [
        (name, after[name].value - line.value) for name, line in before.items() if name in after
    ]
    return [name for name, by in both if by < 0.0], [name for name, by in both if by > 0.0]


def read_reference(
    run: ChosenRun, source: SampleSource, include_path: Sequence[str]
) -> ReferenceScores:
    """Return the scores of the reference of a task.

    Raises PlanError if it has no scores per sample, or if the data set, which is needed to find
    them, is not on this machine.
    """
    report = find_report(run.folder)
    task = next((t for t in report.tasks if t.result.task == source.task), None) if report else None
    if task is None or task.reference is None or task.reference.runs is None:
        raise PlanError(
            f"--flips: {run.folder} has no reference with scores per sample for {source.task}",
            hint=AGAINST,
        )
    try:
        dataset = prepare_again(run.plan, task.spec, include_path).dataset
        stored = score_reference(dataset, task.reference)
    except ServeEvalError as error:
        raise PlanError(
            f"--flips needs the data set and the reference of {source.task}: {error}", hint=AGAINST
        ) from error
    if stored is None:
        raise PlanError(
            f"--flips: the reference of {source.task} has no scores of these samples", hint=AGAINST
        )
    return stored


def list_reference_flips(
    source: SampleSource, reference: ReferenceScores
) -> tuple[list[str], list[str]]:
    """Return the samples whose score fell from the reference's first run, and those that rose."""
    changes = [
        (name, as_stored(line.value, reference.lo, reference.hi) - before[0])
        for name, line in source.scores().items()
        if (before := reference.scores.get(source.base(name)))
    ]
    return [name for name, by in changes if by < 0.0], [name for name, by in changes if by > 0.0]
