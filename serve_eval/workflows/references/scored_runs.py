"""Score the answers of the run folders that a reference is made of."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import EndpointError, RunFolderError
from serve_eval.evaluation.capabilities import reason
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.task_run import open_scoring, take
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Plan, Task, VerdictOutcome
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import executions_file, judgements_file, samples_file
from serve_eval.storage.journal import Journal
from serve_eval.storage.records.answer_origins import keep_standing, run_proofs
from serve_eval.storage.records.executions import Executions
from serve_eval.storage.records.judgements import Judgements
from serve_eval.storage.reports.report_file import has_report, read_report
from serve_eval.storage.sessions import read_unsupported
from serve_eval.workflows.references.distinct_seeds import with_seed


class ScoredRun(NamedTuple):
    """The scores of a run per sample, its value in points, and the parts that its value sums up.

    The first answers to `doubted` of the samples are unknown. `cut` says of each answer whether
    anything cut it off.
    """

    scores: array[float]
    value: float
    parts: Sequence[array[float]]
    doubted: int = 0
    cut: tuple[bool, ...] = ()


def read_scores(run: Path, plan: Plan, prepared: Sequence[PreparedTask]) -> list[list[ScoredRun]]:
    """Return the scores of every task of a run, for each of its repeats, from its journal.

    `prepared` may lack the sampling seeds of `plan`. Raises RunFolderError if a score is missing.
    """
    saved = run_folder.read_fingerprints(run)
    fingerprints = {p.task.name: with_seed(p.fingerprint, saved[p.task.name]) for p in prepared}
    found = []
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder.open_folder(run, plan, fingerprints))
        scoring = stack.enter_context(open_scoring(plan, prepared))
        for p in prepared:
            records = stack.enter_context(Journal(samples_file(folder, p.task.name))).records()
            executions = Executions(executions_file(folder, p.task.name), keep=False)
            judgements = Judgements(judgements_file(folder, p.task.name))
            accumulator = ScoreAccumulator(
                p.task,
                p.dataset.samples,
                repeats=plan.times(p.task.name),
                executions=executions,
                judgements=judgements,
                apart=scoring.of(p.task.name),
            )
            take(keep_standing(records, run_proofs(folder)), accumulator)
            missing = len(accumulator.samples) - accumulator.scored
            if missing:
                raise _explain_missing(run, p.task.name, missing, len(accumulator.samples))
            found.append(_list_runs(accumulator))
    return found


def check_supported(run: Path) -> None:
    """Raise EndpointError if a finished run found that its endpoint lacks what a task needs."""
    report = read_report(run) if has_report(run) else None
    for one in () if report is None else report.tasks:
        name, verdict = one.result.task, one.verdict
        if verdict.outcome is VerdictOutcome.UNSUPPORTED:
            why = "; ".join(reason.removeprefix("unsupported: ") for reason in verdict.reasons)
            raise EndpointError(
                f"{run}: {name} is UNSUPPORTED: {why}",
                hint=f"Leave {name} out, or take it from an endpoint that can do this.",
            )


def _explain_missing(run: Path, task: str, missing: int, total: int) -> RunFolderError:
    """Return the error for samples without a score, and what gives them one."""
    if (lacks := read_unsupported(run).get(task)) is not None:
        return RunFolderError(
            f"{run}: {task} is UNSUPPORTED there and has no scores: {reason(lacks)}",
            hint="To ask again would change nothing. Take the reference at an endpoint that can"
            " answer the task, or register a run without it.",
        )
    return RunFolderError(
        f"{run}: {missing} of {total} samples of {task} have no answer or no score",
        hint="A reference needs every score: resume the run first, with --no-early-stop if it"
        " stopped early.",
    )


def _list_runs(accumulator: ScoreAccumulator) -> list[ScoredRun]:
    sums = accumulator.task.aggregation.sums
    parts = accumulator.part_runs(() if sums is None else sums.parts)
    n = len(accumulator.samples) // accumulator.repeats
    doubted = [0] * accumulator.repeats
    for place in accumulator.list_doubted():
        doubted[place // n] += 1
    cut = [[False] * n for _ in doubted]
    for place in accumulator.list_cut():
        cut[place // n][place % n] = True
    cuts = map(tuple, cut)
    rows = zip(accumulator.runs(), accumulator.run_values(), parts, doubted, cuts, strict=True)
    return [ScoredRun(*row) for row in rows]


def join_parts(task: Task, scored: Sequence[ScoredRun]) -> Mapping[str, Sequence[array[float]]]:
    """Return the parts of all runs by name, none for a value that does not depend on sums."""
    sums = task.aggregation.sums
    names = () if sums is None else sums.parts
    return {name: [run.parts[i] for run in scored] for i, name in enumerate(names)}


def find_range(task: Task, runs: Sequence[array[float]]) -> tuple[float, float] | None:
    """Return the range of the stored scores.

    The verdict on sums does not depend on it, so that it may end at the highest score. Scores of a
    mean without a range cannot be stored: None.
    """
    lo, hi = task.metric.lo, task.metric.hi
    if lo is not None and hi is None and task.aggregation.sums is not None:
        hi = math.ceil(max(lo + 1.0, *map(max, runs)))
    return None if lo is None or hi is None else (lo, hi)


def list_failed(runs: Sequence[Path], task: str) -> Iterator[str]:
    """Yield a warning about each run that its own reference failed."""
    for run in runs:
        report = read_report(run) if has_report(run) else None
        for one in () if report is None else report.tasks:
            verdict = one.verdict
            if one.result.task == task and verdict.outcome is VerdictOutcome.FAIL:
                against = "" if verdict.reference is None else f" against {verdict.reference:.3f}"
                yield (
                    f"{run} was FAIL{against}: the reference takes a value as sound that was judged"
                    " too low or too high"
                )
