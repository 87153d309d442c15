"""Find the load at which an endpoint begins to break, by halving between two loads.

The lowest and the highest load are compared first. Only if they differ is a load between them
asked, at their geometric mean, and then one between the two that still differ. Each is compared
with both ends: it is broken if it is worse than the sound end, and sound if it is better than the
broken end. If it is neither, it and both ends are asked again, so that each side of a comparison
always has as many answers to a prompt as the other. This is right if the fault begins at one load
and stays; a load that is broken alone lies outside the bracket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.schema import LoadBracket, LoadStep
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.workflows.load.asking import SurfaceSession

LEVEL = 0.05
"""Chance that a bracket is wrong because one of its steps is."""
ASKINGS = 3
"""Times that a load is asked before it stays undecided."""


def halve(low: int, high: int) -> int | None:
    """Return the load between two others at which to go on; None if there is none."""
    if high - low < 2:
        return None
    return min(high - 1, max(low + 1, round(math.sqrt(low * high))))


@cache
def count_halvings(low: int, high: int) -> int:
    """Return the largest number of loads that a bisection between two loads asks."""
    middle = halve(low, high)
    if middle is None:
        return 0
    return 1 + max(count_halvings(low, middle), count_halvings(middle, high))


async def bisect_loads(session: SurfaceSession, task: str, *, rises: bool) -> LoadBracket:
    """Return the bracket of the loads between which the answers to a task break.

    With `rises`, the higher end is the sound one.
    """
    low, high = session.loads[0], session.loads[-1]
    search = _Search(
        session=session,
        task=task,
        good=high if rises else low,
        bad=low if rises else high,
        alpha=LEVEL / max(1, ASKINGS * count_halvings(low, high)),
    )
    good, bad, steps, undecided = search.good, search.bad, list[LoadStep](), None
    while (middle := halve(min(good, bad), max(good, bad))) is not None:
        step = await search.decide(middle)
        steps.append(step)
        if step.finding == "undecided":
            undecided = middle
            break
        good, bad = (middle, bad) if step.finding == "sound" else (good, middle)
    return LoadBracket(
        task=task, good=good, bad=bad, level=LEVEL, steps=tuple(steps), undecided=undecided
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A search with the two ends that every load is compared with. `alpha` is that of one test."""

    session: SurfaceSession
    task: str
    good: int
    bad: int
    alpha: float

    async def decide(self, load: int) -> LoadStep:
        """Ask a load, if needed several times, until it is like one of the ends."""
        finding, asked = "undecided", 0
        against_good = against_bad = (0, 0)
        while finding == "undecided" and asked < ASKINGS:
            asked += 1
            if not await self._ask(load, asked):
                finding = "broken"  # It was given up.
                break
            here = self._read(load, asked)
            against_good = _compare(self._read(self.good, asked), here)
            against_bad = _compare(here, self._read(self.bad, asked))
            if mcnemar(*against_good).p_exact <= self.alpha:
                finding = "broken"
            elif mcnemar(*against_bad).p_exact <= self.alpha:
                finding = "sound"
        return LoadStep(
            load=load,
            askings=asked,
            finding=finding,  # type: ignore[arg-type]
            against_good=against_good,
            against_bad=against_bad,
        )

    async def _ask(self, load: int, asked: int) -> bool:
        """Ask the load for the time `asked`, and the ends as often. Return False if given up."""
        for one in (load, self.good, self.bad):
            name = _name_asking(one, asked)
            await self.session.ask(name, one, self.task)
            if not self.session.is_done(name):
                return False
        return True

    def _read(self, load: int, asked: int) -> list[TaskAnswers]:
        found = [self.session.find(_name_asking(load, n)) for n in range(1, asked + 1)]
        return [one.read_answers(self.task) for one in found if one is not None]


def _name_asking(load: int, asked: int) -> str:
    return str(load) if asked == 1 else f"{load}_{asked}"


def _compare(before: Sequence[TaskAnswers], after: Sequence[TaskAnswers]) -> tuple[int, int]:
    """Count the prompts whose score sum over all askings fell and rose."""
    sign = 1.0 if before[0].task.result.metric.higher_is_better else -1.0
    every = [one.lines[0] for one in (*before, *after)]
    prompts = [prompt for prompt in every[0] if all(prompt in lines for lines in every)]
    changes = []
    for prompt in prompts:
        first, second = (
            math.fsum(one.lines[0][prompt].value for one in side) for side in (before, after)
        )
        changes.append(sign * (second - first))
    return sum(change < 0.0 for change in changes), sum(change > 0.0 for change in changes)
