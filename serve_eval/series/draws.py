"""Choose the runs of two deployments that are paired, and pool those that differ in their seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.report.results_table.cell import ResultCell, name_seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedDraws:
    """The runs of the baseline and of a row that are paired, a cell each.

    `common`: both have the same seeds, in one order. `seeds` names them in words, "" if neither
    side has several runs that differ in their seed.
    """

    before: Sequence[ResultCell]
    after: Sequence[ResultCell]
    common: bool = False
    seeds: str = ""


def match_draws(had: ResultCell, cell: ResultCell) -> MatchedDraws:
    """Return the runs with the sampling seeds that both sides have, or else all of both sides."""
    before, after = _list_whole(had), _list_whole(cell)
    if not had.draws and not cell.draws:
        return MatchedDraws(before=[had], after=[cell])
    if both := [seed for seed in after if seed in before]:
        found = [after[seed] for seed in both]
        return MatchedDraws(
            before=[before[seed] for seed in both],
            after=found,
            common=True,
            seeds=f"the sampling seed{'s' if len(both) > 1 else ''} {name_seeds(found)}"
            " that both sides have",
        )
    return MatchedDraws(
        before=list(before.values()),
        after=list(after.values()),
        seeds=f"sampling seeds {name_seeds(after.values())}, and of the baseline"
        f" {name_seeds(before.values())}",
    )


def _list_whole(cell: ResultCell) -> dict[str, ResultCell]:
    """Return the runs of a cell that can be paired, by seed."""
    return {one.seed: one for one in cell.draws or (cell,) if one.value is not None and one.whole}


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
