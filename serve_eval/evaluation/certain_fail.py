"""Find a task whose FAIL is certain while a run asks, so that nothing more must be asked.

A FAIL is certain if no answer that is missing or was not asked can change it. That is so if an
early stop decided it, if the best value that the rest allows is below the threshold of the classic
rule, or if McNemar's test proves the drop with the rest at its best. Of the rules whose tests share
an error, it counts only at its part of alpha: p times the number of all tests, also of those that
will not be made, is the largest p that Holm's correction can return. Each FAIL that ends a run or a
suite is the verdict that all answers would give, but for the error of an early stop.

The tasks keep the order of the plan, so that a verdict depends on no other run and the user decides
what is asked first: the cheapest task, or one that fails often.
"""

from __future__ import annotations

import asyncio

from serve_eval.evaluation.engine.budget import RunBudget
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_report import RunFacts, judge_task
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.schema import CERTAIN, Verdict, VerdictOutcome
from serve_eval.stats.classic import Decision
from serve_eval.storage import run_folder
from serve_eval.verdicts.many_tests import GATES, find_test

LOOKS = 32
"""Looks at a task while it is asked, at equal distances of its samples."""


class CertainFail:
    """Look for a task of a session whose FAIL is certain and counts."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._facts = RunFacts(
            folder=session.folder,
            plan=session.plan,
            unsupported={},
            served=None,
            seeds=session.seeds,
            limits=[session.plan.limits, *(load.limits for load in session.noted.loads())],
            looked_at=run_folder.read_looks(session.folder),
            ended_by=CERTAIN,
        )
        own = sum(w.prepared.rule.name in GATES for w in session.tasks)
        self._tests = max(1, own, session.part.tests)
        self._tasks = {
            w.prepared.task.name: w
            for w in session.tasks
            if w.prepared.task.name not in session.part.waived
            and w.prepared.reference is not None
            and w.executions is None
            and w.judgements is None
        }
        self._looked: dict[str, int] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()

    def find(self) -> str:
        """Return the first task whose FAIL is certain by the answers so far; "" if none is."""
        return next((name for name, w in self._tasks.items() if self._is_certain(w)), "")

    def note(self, lane: Lane) -> None:
        """Take a lane with a new result, and have its task looked at if enough came."""
        name = lane.accumulator.task.name
        if name not in self._tasks:
            return
        came = lane.accumulator.scored
        step = max(1, len(lane.accumulator.samples) // LOOKS)
        if lane.decided or not lane.left or came >= self._looked.get(name, 0) + step:
            self._looked[name] = came
            self._due.add(name)
            self._wake.set()

    async def watch(self, budget: RunBudget) -> None:
        """End the budget once a FAIL is certain. Runs until it is cancelled.

        Each look runs in a thread while answers come. The event loop confirms a finding between
        two answers.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                w = self._tasks[self._due.pop()]
                if await asyncio.to_thread(self._is_certain, w) and self._is_certain(w):
                    budget.end(CERTAIN)
                    return

    def _is_certain(self, task_run: TaskRun) -> bool:
        early = task_run.early
        if early is not None and early.decision is not None and early.result().stopped:
            return early.decision is Decision.FAIL
        if not task_run.accumulator.scored:
            return False
        return stands(judge_task(task_run, self._facts), self._tests)


def stands(verdict: Verdict, tests: int) -> bool:
    """Return True for a FAIL that no correction for this number of tests can take back."""
    if verdict.outcome is not VerdictOutcome.FAIL or verdict.rule not in GATES:
        return verdict.outcome is VerdictOutcome.FAIL
    p, _ = find_test(verdict)
    paired = verdict.paired
    return p is not None and paired is not None and tests * p <= paired.alpha
