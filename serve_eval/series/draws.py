"""Choose the runs of two deployments that are paired, and pool those that differ in their seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serve_eval.evaluation.agreement.answer_pairs import TaskAnswers
from serve_eval.report.results_table.cell import Draw, ResultCell, name_seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedDraws:
    """The runs of the baseline and of a row that are paired.

    `common`: both have the same seeds, in one order. `seeds` names them in words, "" if neither
    side has several runs that differ in their seed.
    """

    before: Sequence[Draw]
    after: Sequence[Draw]
    common: bool = False
    seeds: str = ""


def match_draws(had: ResultCell, cell: ResultCell) -> MatchedDraws:
    """Return the runs with the sampling seeds that both sides have, or else all of both sides.

    The latest run of each seed counts.
    """
    before, after = _list_latest(had), _list_latest(cell)
    if len(before) < 2 and len(after) < 2:
        return MatchedDraws(before=[_own(had)], after=[_own(cell)])
    if both := [seed for seed in after if seed in before]:
        named = name_seeds(both)
        return MatchedDraws(
            before=[before[seed] for seed in both],
            after=[after[seed] for seed in both],
            common=True,
            seeds=f"the sampling seed{'s' if len(both) > 1 else ''} {named} that both sides have",
        )
    return MatchedDraws(
        before=list(before.values()),
        after=list(after.values()),
        seeds=f"sampling seeds {name_seeds(after)}, and of the baseline {name_seeds(before)}",
    )


def _list_latest(cell: ResultCell) -> dict[str, Draw]:
    """Return the latest whole run of each seed; that of the cell is the latest of its seed."""
    found = {one.seed: one for one in cell.draws if one.whole}
    own = _own(cell)
    return {**found, own.seed: own}


def _own(cell: ResultCell) -> Draw:
    """Return the run that a cell shows."""
    known = next((one for one in cell.draws if one.run == cell.run), None)
    return known or Draw(seed="", value=cell.value or 0.0, run=cell.run)


def pool(sides: Sequence[TaskAnswers]) -> TaskAnswers:
    """Return runs that asked one task alike as one run, in which each is a repeat."""
    first = sides[0]
    if len(sides) == 1:
        return first
    planned = sum(one.task.result.planned for one in sides)
    result = replace(first.task.result, planned=planned)
    return replace(
        first,
        task=replace(first.task, result=result),
        lines=tuple(lines for one in sides for lines in one.lines),
        said=tuple(said for one in sides for said in one.said),
        doubted=tuple(gone for one in sides for gone in one.doubted),
    )
