"""Hold a running task: its journal, its answers so far, and the samples still to be asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.evaluation.engine.lane import arrange, list_group_keys, task_seed
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.scoring import Grade, Recipe, ScoringProcesses, recipe_for
from serve_eval.plan.prepared_task import PreparedTask, find_roots
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import IdentityFinding, Limits, Plan, Program, Question, Spec
from serve_eval.storage.assessments import Executions, Judgements
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.order_seed import OrderSeeds
from serve_eval.storage.scores import ScoreFile

if TYPE_CHECKING:
    from serve_eval.evaluation.early_stop import EarlyStopping


@dataclass(slots=True)
class TaskRun:
    """A running task.

    `early` examines the task if it may stop early; otherwise `note` says why it may not.
    `executions` is set for a task that runs its answers, `judgements` for one whose answers are
    judged. `standing` are the positions of failures that are not asked again; with
    `failures_stand`, judges are not asked again either. `scores` is the file for its scores.
    `identity` is what the probes of its reference found (None: they were not asked).
    """

    prepared: PreparedTask
    journal: Journal
    accumulator: ScoreAccumulator
    executions: Executions | None = None
    judgements: Judgements | None = None
    early: EarlyStopping | None = None
    note: str | None = None
    standing: frozenset[int] = frozenset()
    failures_stand: bool = False
    scores: ScoreFile | None = None
    identity: IdentityFinding | None = None

    @property
    def spared(self) -> bool:
        """True if an early stop left samples unasked."""
        return self.early is not None and self.early.result().stopped

    @property
    def identical(self) -> bool:
        """True if the task passes by identity, and is not asked."""
        return self.identity is not None and self.identity.accepted

    def list_pending_programs(self) -> dict[str, Program]:
        """Return the programs in its answers that have not been run yet."""
        if self.executions is None:
            return {}
        return self.executions.list_pending(
            self.prepared.task, self.accumulator.samples, self.journal.records()
        )

    def list_unjudged(self, *, itself: bool) -> dict[str, Question]:
        """Return the open questions about its answers, for `itself` or for other judges.

        `itself` is the endpoint that gave the answers.
        """
        if self.judgements is None:
            return {}
        records = self.journal.records()
        pending = self.judgements.list_pending(
            self.prepared.task, self.accumulator.samples, records, again=not self.failures_stand
        )
        return {name: q for name, q in pending.items() if (q.judge.base_url is None) is itself}

    @property
    def unfinished(self) -> bool:
        decided = self.identical or (self.early is not None and self.early.decision is not None)
        return (
            self.accumulator.scored + len(self.standing) < len(self.accumulator.samples)
            and not decided
        )

    def list_pending_samples(self) -> list[int]:
        """Return the positions of the samples still to be asked."""
        return [i for i in self.accumulator.list_unanswered() if i not in self.standing]


def open_scoring(plan: Plan, prepared: Iterable[PreparedTask]) -> ScoringProcesses:
    """Start the processes that score answers of these tasks, except for tasks scored inline."""
    recipes = {
        p.task.name: recipe_of(plan, p.spec, p.wanted)
        for p in prepared
        if p.task.scoring != "inline"
    }
    return ScoringProcesses(recipes, limit_s=plan.limits.scorer_timeout_s)


def recipe_of(plan: Plan, spec: Spec, wanted: int) -> Recipe:
    """Return the recipe with which another process builds a task of the plan."""
    return recipe_for(spec, roots=find_roots(plan), wanted=wanted)


def random_order(
    task_run: TaskRun,
    seeds: OrderSeeds,
    sessions: Iterable[Limits],
    looked_at: Collection[str],
) -> Sequence[int] | None:
    """Return all samples of a task in the random order of their starts, across sessions.

    None if one of the `sessions` had another order, or if shards had different ones. None too if a
    paired rule examined the task (`looked_at`) by whole groups or in rounds of repeats: samples of
    a group or prompt follow each other and may fail together, which is no random order of samples.
    """
    accumulator = task_run.accumulator
    if task_run.prepared.task.name in looked_at and (
        accumulator.repeats > 1 or list_group_keys(accumulator.samples)
    ):
        return None
    if task_run.early is not None:
        return task_run.early.order
    if seeds.several or any(limits.order != "random" for limits in sessions):
        return None
    samples = task_run.accumulator.samples
    return arrange(
        samples,
        range(len(samples)),
        "random",
        task_seed(seeds.samples, task_run.prepared.task.name),
        task_run.prepared.part,
    )


AHEAD = 16
"""Number of answers that are sent to other processes ahead of time."""


def replay(journal: Journal, accumulator: ScoreAccumulator, *, failures_stand: bool = False) -> int:
    """Feed the records of the journal to the accumulator. Return the number of responses."""
    return (
        0 if journal.empty else take(journal.records(), accumulator, failures_stand=failures_stand)
    )


def take(
    records: Iterable[Record], accumulator: ScoreAccumulator, *, failures_stand: bool = False
) -> int:
    """Feed records to the accumulator, except those of other samples.

    Return the number of responses.

    A failed sample is asked again, so its failure counts only in the traffic. With
    `failures_stand`, it counts as a failure.
    """
    index = {sample.id: i for i, sample in enumerate(accumulator.samples)}
    responses = 0
    for record, graded in _grade_records(records, index, accumulator):
        i = index.get(record.id)
        if i is None:
            continue
        if record.response is not None:
            accumulator.add(i, record.response, graded)
            responses += 1
        elif record.failure is not None and failures_stand:
            accumulator.add(i, record.failure)
        elif record.failure is not None:
            accumulator.count(i, record.failure)
    return responses


def _grade_records(
    records: Iterable[Record], index: Mapping[str, int], accumulator: ScoreAccumulator
) -> Iterator[tuple[Record, Grade | Unfinished | None]]:
    """Yield the records in their order, with their grades if other processes compute them.

    Requests some grades ahead, to keep these processes busy.
    """
    ahead: deque[tuple[Record, Future[Grade | Unfinished] | None]] = deque()
    for record in records:
        i = index.get(record.id)
        future = (
            None
            if record.response is None or i is None
            else accumulator.start_scoring(i, record.response)
        )
        ahead.append((record, future))
        while ahead and (ahead[0][1] is None or len(ahead) > AHEAD):
            first, waited = ahead.popleft()
            yield first, None if waited is None else waited.result()
    for first, waited in ahead:
        yield first, None if waited is None else waited.result()
