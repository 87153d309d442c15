"""Hold a table of deployments by tasks, with the words of its cells and legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.report.results_table.cell import LEFT_OUT, MARKS, MISSING, PROVEN, STAR, ResultCell
from serve_eval.report.summary.figures import in_points
from serve_eval.schema import Metric

RUN = "run"
"""The attribute with the name of the run, which needs no word in front of it."""
SAMPLING_SEED, BEGAN = "sampling seed", "began"
"""The attributes with the sampling seed of a run and its time, of a table with a row for each."""


@freeze
class TaskColumn:
    """A task as it was asked: runs that asked it in another way have a column of their own.

    `heading` tells the columns of a task apart. `planned` is the number of samples (None: it is
    not known), and `repeats` are the numbers of times that the runs of the column asked each.
    """

    task: str
    heading: str
    metric: Metric
    planned: int | None
    repeats: Sequence[int] = (1,)

    @property
    def unit(self) -> str:
        return "points" if in_points(self.metric) else self.metric.name

    @property
    def size(self) -> str:
        """The number of samples, and the unit if it is not points."""
        return self.count + ("" if in_points(self.metric) else f", {self.unit}")

    @property
    def count(self) -> str:
        """The number of samples, with repeats that all runs have: "n 36 x 2"."""
        [*times] = self.repeats
        if self.planned is None:
            return f"n {MISSING}"
        return f"n {self.planned}" + (f" x {times[0]}" if len(times) == 1 and times[0] > 1 else "")


@freeze
class DeploymentRow:
    """One deployment: its model, what is known about it, and a cell for each column, or None."""

    model: str
    attributes: Mapping[str, str]
    cells: Sequence[ResultCell | None]


@freeze
class ResultsTable:
    """Deployments by tasks. `shown` are the attributes that tell the rows apart.

    `rules` are sentences about the rules that judged, `notes` about what is not shown; `details`
    are others, with paths and commands, which a paper or a picture leaves out. `references` are
    those that judged, each with its deployment and tasks. `differing` says of tasks with several
    columns what differs between these. `against` names the baseline of a table of differences.
    """

    columns: Sequence[TaskColumn]
    rows: Sequence[DeploymentRow]
    shown: Sequence[str]
    notes: Sequence[str] = field(default_factory=tuple)
    details: Sequence[str] = field(default_factory=tuple)
    references: Sequence[str] = field(default_factory=tuple)
    rules: Sequence[str] = field(default_factory=tuple)
    differing: Mapping[str, str] = field(default_factory=dict)
    against: str = ""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def caption(self) -> str:
        """The caption: values or differences, their model, and the level of their intervals."""
        [*units] = dict.fromkeys(column.unit for column in self.columns)
        what = "Differences" if self.against else "Values"
        said = f"{what} in points" if units == ["points"] else what
        whose = f" of {self.models[0]}" if len(self.models) == 1 else ""
        compared = f" from {self.against} on the same prompts" if self.against else ""
        return f"{said}{whose}{compared} with 95 % intervals; n: samples"

    @property
    def heads(self) -> list[str]:
        """The names of the columns before the tasks."""
        several = ["model"] if len(self.models) > 1 or not self.shown else []
        return [*several, *self.shown]

    def name(self, row: DeploymentRow) -> list[str]:
        """Return the cells of a row before the tasks."""
        known = {"model": row.model, **row.attributes}
        return [known.get(head) or MISSING for head in self.heads]

    def label(self, row: DeploymentRow) -> str:
        """Return the name of a row on one line, with as few attributes as tell the rows apart."""
        several = [row.model] if len(self.models) > 1 or not self.shown else []
        told = [
            row.attributes.get(name, MISSING)
            if name == RUN and name in row.attributes
            else f"{name} {row.attributes.get(name, MISSING)}"
            for name in self._list_least()
        ]
        return ", ".join([*several, *told]) or ", ".join(self.name(row))

    def _list_least(self) -> list[str]:
        least: list[str] = []
        told = len(self.models)
        for name in self.shown:
            apart = {
                (row.model, *(row.attributes.get(one) for one in (*least, name)))
                for row in self.rows
            }
            if len(apart) > told:
                least.append(name)
                told = len(apart)
        return least

    def list_legend(self) -> Iterator[tuple[str, str]]:
        """Yield the marks that occur, each with its meaning."""
        cells = [cell for row in self.rows for cell in row.cells]
        known = [cell for cell in cells if cell is not None]
        outcomes = set() if self.against else {cell.outcome for cell in known}
        worst = "" if self.against else " and the worst verdict"
        yield from ((mark, one.value) for one, mark in MARKS.items() if one in outcomes)
        for mark, present, meaning in (
            ("w", any(cell.waived for cell in known), "a waived FAIL"),
            (
                PROVEN["drop"],
                not self.against and any(cell.change == "drop" for cell in known),
                "a drop on the same prompts is proven, which the rule does not fail",
            ),
            (
                PROVEN["rise"],
                not self.against and any(cell.change == "rise" for cell in known),
                "a rise on the same prompts is proven",
            ),
            (
                "f",
                any(cell.failed for cell in known),
                "number of failed samples; the interval has them at their best and worst",
            ),
            (
                "r",
                any(cell.repaired for cell in known),
                "number of repaired samples, whose first answers are unknown",
            ),
            (
                "e",
                any(cell.estimate for cell in known),
                "number of samples behind an estimate (~) after an early stop",
            ),
            (
                "s",
                any(cell.averaged for cell in known),
                "number of sampling seeds that the figure is the mean over, as repeats of the same"
                f" samples, with the interval of that mean{worst}",
            ),
            (STAR, any(cell.star for cell in known), "proven: Holm's p is at most 0.05"),
            (MISSING, None in cells, LEFT_OUT),
        ):
            if present:
                yield mark, meaning

    def _explain_columns(self) -> Iterator[str]:
        """Yield why tasks have several of the columns that are shown."""
        for task, differing in self.differing.items():
            shown = sum(column.task == task for column in self.columns)
            why = "since" if self.against else "whose values cannot be compared:"
            if shown > 1:
                yield f"{task}: {shown} columns, {why} {differing} differ"

    def list_notes(self, *, plain: bool = False, reasons: bool = True) -> Iterator[str]:
        """Yield why cells have no value, which runs are not shown, and the other notes.

        Tasks and rows with the same note share it. `plain`: without commands, paths and URLs.
        Without `reasons`, others say why cells have no value.
        """
        alike: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            said: dict[str, list[str]] = {}
            for column, cell in zip(self.columns, row.cells, strict=True):
                known = cell is not None and (reasons or cell.value is not None or cell.others)
                for note in cell.explain(column.metric, plain=plain) if cell and known else ():
                    said.setdefault(note, []).append(column.heading)
            for note, tasks in said.items():
                alike.setdefault((", ".join(tasks), note), []).append(self.label(row))
        for (named, note), labels in alike.items():
            yield f"{'; '.join(labels)}: {named}: {note}"
        if len(self.rows) > 1 and not self.against:
            yield (
                "each interval is that of one value; a difference on the same prompts can be proven"
                " although intervals overlap"
            )
        yield from () if self.against else self.rules
        yield from self._explain_columns()
        yield from self.notes
        yield from (f"reference: {one}" for one in self.references)
        left = sum(note.startswith("left out: ") for note in self.details)
        if not plain:
            yield from self.details
        elif left:
            yield f"runs left out: {left}"


def show_differences(table: ResultsTable) -> ResultsTable:
    """Return a table of differences with these in place of the values.

    A table of values, which names no baseline, stays as it is.
    """
    if not table.against:
        return table
    rows = [
        replace(row, cells=[None if cell is None else _turn(cell) for cell in row.cells])
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _turn(cell: ResultCell) -> ResultCell:
    direction: Literal["drop", "rise"] = "drop" if (cell.difference or 0.0) < 0.0 else "rise"
    return replace(
        cell,
        value=cell.difference,
        interval=cell.difference_interval,
        proven=direction if cell.star else "",
        waived=False,
        signed=True,
    )
