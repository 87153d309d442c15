"""Score the answers of a run again, without asking anything; the run's folder stays unchanged.

The scorers of this version are used, optionally with other values of options that decide only how
an answer is read, such as the filter of GSM8K.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.open_tasks import refuse_identical
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.task_run import recipe_of, take
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    FailureKind,
    Plan,
    Program,
    Report,
    Sample,
    Task,
)
from serve_eval.storage import run_folder
from serve_eval.storage.answer_origins import keep_standing, run_proofs
from serve_eval.storage.assessments import Executions, Judgements, permit
from serve_eval.storage.file_names import executions_file, judgements_file, samples_file
from serve_eval.storage.journal import read
from serve_eval.storage.report_file import find_report
from serve_eval.storage.scores import ScoreRecord, SharedValues, as_on_file, score_records
from serve_eval.workflows.rescore.rescored_run import (
    TaskToRescore,
    apply_settings,
    check_new_run,
    task_to_rescore,
    write_rescored_run,
)

NOT_SCORED = "not scored"
"""Replaces the outcome of an answer without a score on file: the run was killed before scoring
it."""


class RescoreSummary(msgspec.Struct, frozen=True):
    """The outcome of an answer as in a line of scores/<task>.jsonl."""

    outcome: str
    value: float
    answer: str | None = None

    @classmethod
    def of(cls, record: ScoreRecord) -> RescoreSummary:
        """Return the summary of a record."""
        return cls(record.outcome, record.value, record.answer)


class Changed(msgspec.Struct, frozen=True):
    """A sample with another score or answer than before. `before` None: no score was on file."""

    id: str
    target: str
    before: RescoreSummary | None
    after: RescoreSummary


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """The new scores of one task.

    Values are in points, over the `answered` of `planned` samples. `before` comes from the scores
    on file, `reported` from report.json (None: no report). `options` maps a changed option to
    (before, after). `moves` counts samples by outcome before and after; `changed` also has samples
    of which only the value or the answer changed. `verdict_before` is that of report.json, and
    `verdict_after` that of the new folder, judged against `reference` (None: there is none).
    """

    task: str
    planned: int
    answered: int
    before: float | None
    after: float | None
    reported: float | None
    parts: Mapping[str, float]
    options: Mapping[str, tuple[object, object]]
    moves: Sequence[tuple[str, str, int]]
    changed: Sequence[Changed]
    notes: Sequence[str]
    verdict_before: str | None = None
    verdict_after: str | None = None
    reference: float | None = None

    @property
    def moved(self) -> int:
        """Number of samples whose outcome changed."""
        return sum(count for _, _, count in self.moves)


@with_scope
def rescore(
    run: Path,
    settings: Sequence[str] = (),
    *,
    to: Path | None = None,
    allow_code_execution: bool = False,
    include_path: Sequence[str] = (),
    references_dir: Path | None = None,
) -> list[Rescored]:
    """Score the answers in a run folder again; `settings` are options as TASK.option=value.

    `to` is a new folder for a run with the same answers under the changed options, and with a
    report if the run had one. `allow_code_execution` permits programs that the run did not execute.
    `include_path` has the folders of code that may be used; those of the saved plan are not used.
    `references_dir` has the references by which the new run is judged (None: those of the plan).
    Raises PlanError for an option that decides what is asked, DatasetError if the samples are not
    those of the run, RunFolderError for a folder that cannot be read or a `to` that is not new,
    SandboxError for programs that must not or cannot be run.
    """
    refuse_identical(run)
    saved = to_read(run, include_path)
    prints = run_folder.read_fingerprints(run)
    specs = apply_settings(saved, settings)
    prepared = prepare(replace(saved, allow_missing_reference=True))
    work = [
        task_to_rescore(saved, spec, p, prints, run)
        for spec, p in zip(specs, prepared, strict=True)
    ]
    # A reference may have been taken under the old options.
    other = any(one.options for one in work)
    plan = replace(
        saved,
        tasks=tuple(specs),
        allow_missing_reference=saved.allow_missing_reference or other,
        allow_code_execution=allow_code_execution,
    )
    if references_dir is not None:
        plan = replace(plan, references_dir=str(references_dir.absolute()), no_reference=False)
    now = [replace(one.prepared, task=one.task) for one in work]
    if to is not None:
        check_new_run(run, to, plan, now, prints)
    try:
        report = find_report(run)
        values = (
            {task.result.task: task.result.value for task in report.tasks}
            if report is not None
            else {}
        )
        recipes = {
            one.task.name: recipe_of(saved, one.spec, one.prepared.wanted)
            for one in work
            if one.task.scoring != "inline"
        }
        with ScoringProcesses(recipes, limit_s=plan.limits.scorer_timeout_s) as scoring:
            found = [_rescore(run, one, values.get(one.task.name), plan, scoring) for one in work]
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or run}: cannot be read: {error.strerror}"
        ) from error
    judged = None if to is None else write_rescored_run(run, to, plan, now, report)
    return [_add_verdicts(one, report, judged) for one in found]


def _add_verdicts(one: Rescored, before: Report | None, after: Report | None) -> Rescored:
    """Return new scores with the verdicts of their task in the two reports."""
    was, now = (
        None
        if report is None
        else next((task.verdict for task in report.tasks if task.result.task == one.task), None)
        for report in (before, after)
    )
    return msgspec.structs.replace(
        one,
        verdict_before=None if was is None else was.outcome.value,
        verdict_after=None if now is None else now.outcome.value,
        reference=None if now is None else now.reference,
    )


class _Comparison:
    """Receives new scores in place of a file, and keeps those that differ from the ones on file."""

    def __init__(self, before: Mapping[str, ScoreRecord]) -> None:
        self.before = before
        self.moves: Counter[tuple[str, str]] = Counter()
        self.changed: list[Changed] = []

    def write(self, new: ScoreRecord) -> None:
        had = self.before.get(new.id)
        before = None if had is None else RescoreSummary.of(had)
        if before == RescoreSummary.of(new) or before == (
            after := RescoreSummary.of(new := as_on_file(new))
        ):
            return
        self.changed.append(Changed(new.id, new.target, before, after))
        outcome = NOT_SCORED if before is None else before.outcome
        if outcome != after.outcome:
            self.moves[outcome, after.outcome] += 1


def _rescore(
    run: Path, work: TaskToRescore, reported: float | None, plan: Plan, scoring: ScoringProcesses
) -> Rescored:
    name = work.task.name
    shared = SharedValues()
    read_lines = (shared.score(one) for one in score_records(run, name, unfinished=True))
    lines = {line.id: line for line in read_lines}
    comparison = _Comparison(lines)
    samples, journal = work.prepared.dataset.samples, samples_file(run, name)
    executions = Executions(executions_file(run, name), keep=False)
    judgements = Judgements(judgements_file(run, name))
    accumulator = ScoreAccumulator(
        work.task,
        samples,
        comparison,
        repeats=plan.times(name),
        executions=executions,
        judgements=judgements,
        apart=scoring.of(name),
        known_finishes=plan.limits.known_finish_reasons,
    )
    if journal.exists():
        proofs = run_proofs(run)
        if programs := executions.list_pending(
            work.task, accumulator.samples, keep_standing(read(journal), proofs)
        ):
            asyncio.run(
                _run_programs(name, programs, executions, allowed=plan.allow_code_execution)
            )
        take(keep_standing(read(journal), proofs), accumulator)
    result, notes = accumulator.result(), list(work.notes)
    if unjudged := result.failures.get(FailureKind.JUDGE_ERROR):
        notes.append(
            f"{unjudged} answers have no score: too few of the judges' stored replies could be read"
        )
    notes += [one.line for one in result.scorer_errors]
    on_file = _value(
        work.task,
        [(sample, lines[sample.id]) for sample in accumulator.samples if sample.id in lines],
    )
    if (
        reported is not None
        and on_file is not None
        and not math.isclose(reported, on_file, abs_tol=1e-9)
    ):
        notes.append(f"the stored scores are newer than the report, whose value is {reported:.3f}")
    if len(lines) < result.scored:
        notes.append(
            f"{result.scored - len(lines)} answers have no score on file: the run was killed"
        )
    return Rescored(
        task=name,
        planned=result.planned,
        answered=result.scored,
        before=on_file,
        after=result.value,
        reported=reported,
        parts=result.parts,
        options=work.options,
        moves=[(old, new, count) for (old, new), count in sorted(comparison.moves.items())],
        changed=comparison.changed,
        notes=notes,
    )


async def _run_programs(
    name: str, programs: dict[str, Program], executions: Executions, *, allowed: bool
) -> None:
    await executions.run(name, programs, *await permit([name], allowed=allowed), None)


def _value(task: Task, scored: Sequence[tuple[Sample, ScoreRecord]]) -> float | None:
    """Return the value in points of the scores on file."""
    pairs = ((sample, line.score()) for sample, line in scored)
    return task.metric.scale * task.aggregation.of(pairs) if scored else None
