"""Hold a table of deployments by tasks, and the words of its cells and legend. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from serve_eval.report.summary.figures import add_sign, figure, in_points
from serve_eval.schema import Metric, VerdictOutcome

MISSING = "-"
_NOT_PLAIN = ("/", "\\", "serve-eval")
"""Signs of a path, a URL or a command."""
RUN = "run"
"""The attribute with the name of the run, which needs no word in front of it."""
MARKS = {
    VerdictOutcome.PASS: "P",
    VerdictOutcome.FAIL: "F",
    VerdictOutcome.INCONCLUSIVE: "I",
    VerdictOutcome.NO_REFERENCE: "N",
    VerdictOutcome.NOT_JUDGED: "T",
    VerdictOutcome.SHARD: "S",
    VerdictOutcome.UNSUPPORTED: "U",
    VerdictOutcome.ERROR: "E",
}
"""The mark of each outcome: a letter, which every format and font has."""
PROVEN = {"drop": "d", "rise": "u"}
"""The mark of a proven change that is no FAIL."""
STAR = "*"
"""The mark of a proven difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCell:
    """One task of one run.

    `value` and `interval` (95 %) are in points or in the unit of the metric. `scored` of `planned`
    samples have a score (None: an error ended the run before their number was known);
    `estimate`: an early stop left the others out. `others` further runs of
    the same row and column are not shown. `reason` says why there is no value. `rule` judged,
    against `reference`; `difference` with its 95 % interval and the one-sided `p` are of the same
    prompts, if the reference has scores of single ones; `p_rise` is that of "no rise". `p_holm` and
    `q` are those of a suite, `finding` is after its correction, and so is `proven`, the direction
    of a proven change. `reference_name` names what judged it. In a table of differences `p_table`
    is the two-sided p by Holm over the table, and `star` says that it proves the difference;
    `signed`: the value is one.
    """

    value: float | None
    interval: tuple[float, float] | None
    outcome: VerdictOutcome
    scored: int
    planned: int | None
    failed: int = 0
    repaired: int = 0
    estimate: bool = False
    waived: bool = False
    run: str = ""
    others: int = 0
    reason: str = ""
    rule: str = ""
    reference: float | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    p: float | None = None
    p_rise: float | None = None
    p_holm: float | None = None
    q: float | None = None
    finding: str = ""
    proven: Literal["", "drop", "rise"] = ""
    reference_name: str = ""
    p_table: float | None = None
    star: bool = False
    signed: bool = False

    @property
    def change(self) -> str:
        """The direction of a proven change; a FAIL says it itself."""
        return "" if self.outcome is VerdictOutcome.FAIL else self.proven

    @property
    def marks(self) -> list[str]:
        """The verdict, and what a reader of the value must know."""
        counts = {"f": self.failed, "r": self.repaired, "e": self.scored if self.estimate else 0}
        told = [f"{mark}{n}" for mark, n in counts.items() if n]
        if self.signed:
            return [*([STAR] if self.star else []), *told]
        proven = [PROVEN[self.change]] if self.change else []
        return [MARKS[self.outcome] + ("w" if self.waived else ""), *proven, *told]

    def figures(self, metric: Metric) -> str:
        """Return the value with its interval: "65.0 [40.8, 84.6]", "~64.1" or "-"."""
        return f"{self.number(metric)} {self.ends(metric)}".rstrip()

    def number(self, metric: Metric) -> str:
        """Return the value alone: "65.0", "~64.1", "-11.1" or "-"."""
        if self.value is None:
            return MISSING
        write = add_sign if self.signed else figure
        return f"{'~' if self.estimate else ''}{write(self.value, metric)}"

    def ends(self, metric: Metric) -> str:
        """Return the interval alone: "[40.8, 84.6]", or "" without one."""
        if self.value is None or self.interval is None:
            return ""
        write = add_sign if self.signed else figure
        return f"[{', '.join(write(end, metric) for end in self.interval)}]"

    def write(self, metric: Metric) -> str:
        """Return the figures with the marks."""
        return f"{self.figures(metric)} {' '.join(self.marks)}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRow:
    """One deployment: its model, what is known about it, and a cell for each column, or None."""

    model: str
    attributes: Mapping[str, str]
    cells: Sequence[ResultCell | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTable:
    """Deployments by tasks. `shown` are the attributes that tell the rows apart.

    `notes` are sentences about what is not shown; `details` are others, with paths and commands,
    which a paper or a picture leaves out. `references` are those that judged, each with its
    deployment and tasks. `against` names the baseline of a table of differences.
    """

    columns: Sequence[TaskColumn]
    rows: Sequence[DeploymentRow]
    shown: Sequence[str]
    notes: Sequence[str] = field(default_factory=tuple)
    details: Sequence[str] = field(default_factory=tuple)
    references: Sequence[str] = field(default_factory=tuple)
    against: str = ""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def caption(self) -> str:
        """What the figures are."""
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
        return ", ".join([*several, *told])

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
            (STAR, any(cell.star for cell in known), "proven: Holm's p is at most 0.05"),
            (MISSING, None in cells, "not run in this way, or not finished"),
        ):
            if present:
                yield mark, meaning

    def list_notes(self, *, plain: bool = False, reasons: bool = True) -> Iterator[str]:
        """Yield why cells have no value, which runs are not shown, and the other notes.

        There is one note for the tasks and rows about which the same is said. `plain`: without
        commands, paths and URLs. Without `reasons`, others say why cells have no value.
        """
        alike: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            said: dict[str, list[str]] = {}
            for column, cell in zip(self.columns, row.cells, strict=True):
                known = cell is not None and (reasons or cell.value is not None or cell.others)
                for note in _explain_cell(cell, plain=plain) if cell and known else ():
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
        yield from self.notes
        yield from (f"reference: {one}" for one in self.references)
        left = sum(note.startswith("left out: ") for note in self.details)
        if not plain:
            yield from self.details
        elif left:
            yield f"runs left out: {left}"


def _explain_cell(cell: ResultCell, *, plain: bool) -> Iterator[str]:
    """Yield why a cell has no value, and of how many runs it is the latest."""
    outcome = cell.outcome.value
    if cell.value is None:
        told = not plain or not any(sign in cell.reason for sign in _NOT_PLAIN)
        yield f"no value: {cell.reason or outcome}" if told else f"no value: {outcome}"
    if cell.others:
        which = "" if plain else f", {cell.run}; --all shows each"
        yield f"the latest of {cell.others + 1} runs{which}"
