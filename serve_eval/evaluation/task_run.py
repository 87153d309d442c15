"""The tasks of a run under way: their journals, what was had, and what is still to be had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from serve_eval.evaluation.engine import reply_proofs
from serve_eval.evaluation.engine.accumulator import Tally, replay, take
from serve_eval.evaluation.engine.order import arranged, task_seed
from serve_eval.evaluation.engine.reply_proofs import Proofs, withdraw_all
from serve_eval.evaluation.engine.scoring import Recipe, ScoringProcesses, recipe_for
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.rerun import Rerun
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.executions import FOLDER, Executions
from serve_eval.evaluation.storage.journal import Journal
from serve_eval.evaluation.storage.judgements import FOLDER as JUDGED
from serve_eval.evaluation.storage.judgements import Judgements
from serve_eval.evaluation.storage.order_seed import OrderSeeds
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import Limits, Plan, Program, Question, Spec

if TYPE_CHECKING:
    from serve_eval.evaluation.early_stop import Prefix


@dataclass(slots=True)
class Work:
    """A task under way. `early` looks at it when it may stop early; `note` is why it may not. `executions` are there
    for a task that runs its answers, `judgements` for one that has them judged. `standing` are the positions of
    failures that are not asked again, and with `failures_stand` no judge is either. `scores` is where its scores are
    written as they come."""

    p: PreparedTask
    journal: Journal
    tally: Tally
    executions: Executions | None = None
    judgements: Judgements | None = None
    early: Prefix | None = None
    note: str | None = None
    standing: frozenset[int] = frozenset()
    failures_stand: bool = False
    scores: BinaryIO | None = None

    @property
    def spared(self) -> bool:
        """Whether an early stop left something unasked."""
        return self.early is not None and self.early.result().stopped

    def pending(self) -> dict[str, Program]:
        """The programs of its answers that are still to be run."""
        if self.executions is None:
            return {}
        return self.executions.pending(self.p.task, self.tally.samples, self.journal.records())

    def unjudged(self, *, itself: bool) -> dict[str, Question]:
        """What is still to be asked about its answers: of the endpoint `itself`, or of judges elsewhere."""
        if self.judgements is None:
            return {}
        records = self.journal.records()
        pending = self.judgements.pending(self.p.task, self.tally.samples, records, again=not self.failures_stand)
        return {name: q for name, q in pending.items() if (q.judge.base_url is None) is itself}

    @property
    def unfinished(self) -> bool:
        decided = self.early is not None and self.early.decision is not None
        return self.tally.scored + len(self.standing) < len(self.tally.samples) and not decided

    def pending_samples(self) -> Iterator[int]:
        """Positions of the samples that are to be asked."""
        return (i for i in self.tally.unanswered() if i not in self.standing)


def scoring_of(plan: Plan, prepared: Iterable[PreparedTask]) -> ScoringProcesses:
    """The processes in which answers of these tasks are scored, for those that are not scored here."""
    recipes = {p.task.name: recipe_of(plan, p.spec, p.wanted) for p in prepared if p.task.scoring != "inline"}
    return ScoringProcesses(recipes, limit_s=plan.limits.scorer_timeout_s)


def recipe_of(plan: Plan, spec: Spec, wanted: int) -> Recipe:
    """Return how another process builds a task of the plan."""
    return recipe_for(spec, dataset_roots=plan.dataset_roots, allow_hub=plan.allow_hub, wanted=wanted)


def opened(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    folder: Path,
    stack: ExitStack,
    warnings: list[str],
    rerun: Rerun,
    scoring: ScoringProcesses,
) -> list[Work]:
    """The tasks of a session with what was had. Under `never`, what failed before stays so; and an answer without a
    score is not asked again."""
    stand = rerun == "never"
    work = [open_task(plan, p, folder, stack, warnings, scoring, failures_stand=stand) for p in prepared]
    for w in work:
        w.standing = frozenset(i for i in w.tally.unanswered() if w.tally.score(i) is not None)
        w.failures_stand = stand
    return work


def open_task(
    plan: Plan,
    p: PreparedTask,
    folder: Path,
    stack: ExitStack,
    warnings: list[str],
    scoring: ScoringProcesses,
    *,
    failures_stand: bool = False,
) -> Work:
    """The journal of a task with what was had, scored again."""
    journal = stack.enter_context(Journal(folder / "samples" / f"{p.task.file_stem}.jsonl"))
    if journal.dropped_bytes:
        torn = f"a torn last record of {journal.dropped_bytes} bytes was dropped"
        warnings.append(f"{p.task.name}: {torn}; its sample is asked again")
    file = f"{p.task.file_stem}.jsonl"
    executions = Executions(folder / FOLDER / file, keep=True) if p.task.program is not None else None
    withdraw_all(journal, Proofs(folder / reply_proofs.FILE))
    judgements = open_judgements(folder / JUDGED / file) if p.task.questions is not None else None
    at_once = executions is None and judgements is None
    scores, times = _scores(p, folder, stack) if at_once else None, plan.times(p.task.name)
    tally = Tally(p.task, p.dataset.samples, scores, repeats=times, apart=scoring.of(p.task.name))
    replay(journal, tally, failures_stand=failures_stand)
    return Work(p, journal, tally, executions, judgements, scores=scores)


def open_judgements(path: Path) -> Judgements:
    """Return the judgements, without those of connections out of step."""
    known = Proofs(reply_proofs.of_judgements(path))
    if known.out and path.exists():
        with Journal(path) as journal:
            withdraw_all(journal, known)
    return Judgements(path)


def settle_scores(work: Iterable[Work], folder: Path) -> None:
    """Takes the scores of answers that were withdrawn out of the files."""
    for w in work:
        if w.scores is not None and w.tally.forgot:
            w.scores.flush()
            with (folder / "scores" / f"{w.p.task.file_stem}.jsonl").open("rb") as file:
                lines = b"".join(w.tally.settled_scores(file))
            w.scores.seek(0)
            w.scores.truncate()
            w.scores.write(lines)
            w.scores.flush()


def _scores(p: PreparedTask, folder: Path, stack: ExitStack) -> BinaryIO:
    return stack.enter_context(run_folder.private_file(folder / "scores" / f"{p.task.file_stem}.jsonl"))


def may_stop_early(plan: Plan, work: Sequence[Work], seeds: OrderSeeds, asking: Path | None = None) -> None:
    """Let the tasks stop early that can, in an order that is drawn for the run and kept when it goes on.

    `asking` is the folder of a run that is going to ask: what paired rules look at there is kept in it.
    """
    if plan.early_stop is None or plan.integration_test or seeds.early_stop is None:
        return
    from serve_eval.evaluation.early_stop import (
        watch,  # needs scipy, which a run loads while it waits for its first answers
    )

    for w in work:
        if w.executions is not None or w.judgements is not None:
            how = "run" if w.judgements is None else "judged"
            w.note = f"no early stop: the answers are {how}, and so scored, after the last one came"
            continue
        w.early, w.note = watch(w.p, w.tally, plan.verdict, eps=plan.early_stop, seed=seeds.early_stop)
        if w.early is not None:
            w.early.look()
    if asking is not None and load_verdict_rule(plan.verdict.name).early_stop == "pairs":
        run_folder.note_looks(asking, {w.p.task.name: plan.verdict.name for w in work if w.early is not None})


def random_order(w: Work, seeds: OrderSeeds, sessions: Iterable[Limits]) -> Sequence[int] | None:
    """Arrange all samples of a task in the random order in which they are started, in one session or in several.

    None where one of the `sessions` had another order.
    """
    if w.early is not None:
        return w.early.order
    if any(limits.order != "random" for limits in sessions):
        return None
    samples = w.tally.samples
    return arranged(samples, range(len(samples)), "random", task_seed(seeds.samples, w.p.task.name))


def score_again(plan: Plan, work: Sequence[Work], folder: Path, stack: ExitStack, scoring: ScoringProcesses) -> None:
    """Scores the answers that were only counted as they came, with all that is known of them now."""
    for w in work:
        if w.executions is None and w.judgements is None:
            continue
        w.tally = Tally(
            w.p.task,
            w.p.dataset.samples,
            _scores(w.p, folder, stack),
            repeats=plan.times(w.p.task.name),
            executions=w.executions,
            judgements=w.judgements,
            apart=scoring.of(w.p.task.name),
        )
        take(w.journal.records(), w.tally, failures_stand=True)
