"""Pool the runs of one deployment and task that differ only in their sampling seed.

Seeds are repeats of the same prompts, as those of a run with --repeats are, so that a table shows
their mean. Nothing depends on the order in which the seeds were asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from serve_eval.errors import ServeEvalError
from serve_eval.evidence.answer_pairs import TaskAnswers, read_task
from serve_eval.frozen import freeze
from serve_eval.report.results_table import DeploymentRow, ResultCell, TaskColumn
from serve_eval.report.results_table.cell import name_seeds
from serve_eval.schema import Metric, VerdictOutcome
from serve_eval.stats.intervals import INTERVAL_ALPHA, wilson
from serve_eval.stats.multiplicity import mean_z_p
from serve_eval.storage.report_file import read_report

_WORST = (
    VerdictOutcome.FAIL,
    VerdictOutcome.ERROR,
    VerdictOutcome.UNSUPPORTED,
    VerdictOutcome.INCONCLUSIVE,
    VerdictOutcome.NOT_ASKED,
    VerdictOutcome.NO_REFERENCE,
    VerdictOutcome.SHARD,
    VerdictOutcome.NOT_JUDGED,
    VerdictOutcome.PASS,
    VerdictOutcome.PASS_BY_IDENTITY,
)
"""Outcomes from the worst to the best, as those of a suite; a waived FAIL is only worse than
PASS."""
_FINDINGS = ("FAIL", "SMALL_DROP", "INCONCLUSIVE", "PASS", "")
Interval = tuple[float, float]


def pool_cells(
    cells: Sequence[ResultCell], metric: Metric, *, prompts: int | None, mean: bool
) -> ResultCell:
    """Return the cell of runs that asked a task alike, the oldest first.

    Of each seed the latest run counts. `prompts` are those that each run asked; `mean`: the value
    is the mean of the scores.
    """
    latest = {one.seed: one for one in cells}
    earlier = len(cells) - len(latest)
    draws = tuple(latest[seed] for seed in sorted(latest, key=_order))
    if len(draws) == 1:
        return replace(draws[0], others=earlier)
    known = [one for one in draws if one.value is not None]
    worst = find_worst(draws)
    if not known:
        return replace(worst, draws=draws, others=earlier, run=join_runs(draws))
    pooled = average(known)
    return replace(
        pooled,
        interval=_find_interval(known, metric, prompts if mean else None),
        outcome=worst.outcome,
        waived=worst.waived,
        others=earlier,
        draws=draws,
        in_suite=any(one.in_suite for one in draws),
        finding=min((one.finding for one in draws), key=_FINDINGS.index),
        proven=_find_proven(draws),
        tests=max((one.tests for one in draws if one.tests is not None), default=None),
    )


def average(known: Sequence[ResultCell]) -> ResultCell:
    """Return the cell of the mean over cells with values, one for each seed.

    p-values that a suite corrected are left out, since they are of its single runs.
    """
    paired = [one for one in known if one.difference is not None]
    in_suite = any(one.in_suite for one in known)
    ends = [one.difference_interval for one in paired]
    return replace(
        known[0],
        value=fmean(one.value for one in known if one.value is not None),
        scored=sum(one.scored for one in known),
        planned=_add([one.planned for one in known]),
        failed=sum(one.failed for one in known),
        repaired=sum(one.repaired for one in known),
        estimate=any(one.estimate for one in known),
        chosen=any(one.chosen for one in known),
        whole=any(one.whole for one in known),
        run=join_runs(known),
        repeats=max(one.repeats for one in known),
        pass_at_repeats=_average_known([one.pass_at_repeats for one in known]),
        vote=_average_known([one.vote for one in known]),
        published=known[0].published if len(known) == 1 else "",
        answered=" ".join(one.answered for one in known),
        seed="",
        rule=_join(one.rule for one in known),
        reference=_keep_same([one.reference for one in known]),
        reference_name=_join(one.reference_name for one in known),
        margin=_keep_same([one.margin for one in known]),
        difference=fmean(one.difference or 0.0 for one in paired) if paired else None,
        difference_interval=_average_ends(ends),
        no_difference="" if paired else _join(one.no_difference for one in known),
        inflation=max((one.inflation for one in paired), default=1.0),
        run_effect=_join(one.run_effect for one in paired),
        p=_join_p([one.p for one in paired]),
        p_rise=_join_p([one.p_rise for one in paired]),
        p_rule=None if in_suite else _join_p([one.p_rule for one in known]),
        p_holm=None,
        q=None,
    )


def find_worst(cells: Iterable[ResultCell]) -> ResultCell:
    """Return the cell with the worst outcome."""
    return min(cells, key=_rank)


def join_runs(cells: Iterable[ResultCell]) -> str:
    """Return the folders of the runs of cells on one line."""
    return "; ".join(one.run for one in cells)


def _order(seed: str) -> tuple[bool, int, str]:
    """Return the place of a seed: none first, then by number."""
    return seed != "", int(seed) if seed.lstrip("-").isdecimal() else 0, seed


def _rank(cell: ResultCell) -> float:
    if cell.waived:
        return _WORST.index(VerdictOutcome.PASS) - 0.5
    return _WORST.index(cell.outcome)


def _find_proven(draws: Sequence[ResultCell]) -> Literal["", "drop", "rise"]:
    """Return the direction of a change that any seed proves; a drop counts first."""
    proven = {one.proven for one in draws}
    return "drop" if "drop" in proven else "rise" if "rise" in proven else ""


def _find_interval(
    known: Sequence[ResultCell], metric: Metric, prompts: int | None
) -> Interval | None:
    """Return the 95 % interval of the mean over seeds, for the population of the prompts.

    Of a mean of bounded scores it is Wilson's of the means of the prompts, as that of a run with
    repeats, with missing scores at their worst and best. Of another value it is the mean of the
    ends: the standard error of a mean is at most the mean of the standard errors, however the seeds
    depend on each other.
    """
    if any(one.interval is None for one in known):
        return None
    planned = _add([one.planned for one in known])
    if not prompts or not planned or metric.lo is None or metric.hi is None:
        return _average_ends([one.interval for one in known])
    span, repeats = metric.hi - metric.lo, planned / prompts
    total = math.fsum(
        ((one.value or 0.0) / metric.scale - metric.lo) / span * one.scored for one in known
    )
    missing = planned - sum(one.scored for one in known)
    low, _ = wilson(_limit(total / repeats, prompts), prompts, INTERVAL_ALPHA)
    _, high = wilson(_limit((total + missing) / repeats, prompts), prompts, INTERVAL_ALPHA)
    ends = metric.lo + span * low, metric.lo + span * high
    return metric.scale * ends[0], metric.scale * ends[1]


def _limit(total: float, most: int) -> float:
    """Return a sum without the rounding that takes it out of its range."""
    return min(float(most), max(0.0, total))


def _average_ends(ends: Sequence[Interval | None]) -> Interval | None:
    known = [one for one in ends if one is not None]
    if not known or len(known) < len(ends):
        return None
    return fmean(low for low, _ in known), fmean(high for _, high in known)


def _average_known(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _join_p(values: Sequence[float | None]) -> float | None:
    known = [p for p in values if p is not None]
    return mean_z_p(known) if known and len(known) == len(values) else None


def _add(numbers: Sequence[int | None]) -> int | None:
    known = [n for n in numbers if n is not None]
    return sum(known) if len(known) == len(numbers) else None


def _keep_same(values: Sequence[float | None]) -> float | None:
    return values[0] if len({*values}) == 1 else None


def _join(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, words)))


@freeze
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


def explain_equal_seeds(
    columns: Sequence[TaskColumn], rows: Sequence[DeploymentRow]
) -> Iterator[str]:
    """Yield the tasks with seeds whose answers are equal texts.

    Answers are read only where the values of all seeds are equal.
    """
    for i, column in enumerate(columns):
        cells = [cell for row in rows if (cell := row.cells[i]) is not None]
        for seeds in dict.fromkeys(
            name_seeds(cell.averaged) for cell in cells if _is_one_draw(column.task, cell)
        ):
            yield (
                f"{column.heading}: the answers with sampling seeds {seeds} are the same texts:"
                " they are one draw, and their sd measures no uncertainty"
            )


def _is_one_draw(task: str, cell: ResultCell) -> bool:
    known = cell.averaged
    if len(known) < 2 or len({one.value for one in known}) > 1:
        return False
    try:
        first, *others = (_hash_answers(task, Path(one.run)) for one in known)
    except ServeEvalError:  # the folder keeps no answers, or they are damaged
        return False
    return bool(any(first)) and all(one == first for one in others)


def _hash_answers(task: str, run: Path) -> tuple[dict[str, bytes], ...]:
    return tuple(dict(said) for said in read_task(run, read_report(run), task).said)
