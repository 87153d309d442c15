"""Choose samples of a run folder, and read what is kept about them. Nothing is sent or written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import PlanError
from serve_eval.plugins import extensions
from serve_eval.plugins.registry import find_closest
from serve_eval.plugins.scope import with_scope
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
from serve_eval.workflows.show.flips import (
    FlippedPair,
    list_flips,
    list_reference_flips,
    pair_samples,
    read_reference,
)
from serve_eval.workflows.show.folders import ChosenRun, find_runs

SCHEMA_VERSION = 1
MOST_ROWS, MOST_SAMPLES = 20, 3
"""Samples that are shown by default, as one line each and in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The samples to show.

    `wrong` and `failed` add up; all other conditions must hold as well. `most` is the number of
    samples to show (None: the default); `everything` has no limit. `brief`: one line per sample.
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

    def limit(self, found: int, *, brief: bool) -> int:
        """Return how many of the found samples to show."""
        if self.everything or (self.ids and self.most is None):
            return found
        usual = MOST_ROWS if brief else MOST_SAMPLES
        return min(found, usual if self.most is None else self.most)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """The chosen samples of a run folder, the most important ones first.

    `found` samples were chosen, of `asked` ones. There are `rows` or `samples`, or `pairs` if two
    runs are compared: `a` is then the other one. `fell` and `rose` count the flips (None: not
    compared). `brief`: one line is wanted for each.
    """

    schema_version: int = SCHEMA_VERSION
    run: str
    a: str | None = None
    asked: int
    found: int
    fell: int | None = None
    rose: int | None = None
    brief: bool
    rows: tuple[SampleRow, ...] = ()
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
    brief = selection.brief or not selection.any
    shown = rows[: selection.limit(len(rows), brief=brief)]
    samples = () if brief else _read(sources, shown)
    return ShownRun(
        run=str(run.folder),
        asked=asked,
        found=len(rows),
        fell=None if flips is None else flips.fell,
        rose=None if flips is None else flips.rose,
        brief=brief,
        rows=tuple(shown) if brief else (),
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
    shown = rows[: selection.limit(len(rows), brief=selection.brief)]
    before = {(one.task, one.id): one for one in _read(list(of_a.values()), shown)}
    pairs = tuple(pair_samples(before[one.task, one.id], one) for one in _read(sources, shown))
    return ShownRun(
        run=str(b.folder),
        a=str(a.folder),
        asked=asked,
        found=len(rows),
        fell=flips.fell,
        rose=flips.rose,
        brief=selection.brief,
        pairs=pairs,
    )


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
