"""The answers of a run, scored again: by the scorers as they are now, or under another option of a
task that decides only how an answer is read, such as the filter of GSM8K. Nothing is asked, and the
run's folder stays as it is.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.plan.resolve import resolve
from serve_eval.evaluation.plan.serialise import to_file
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.rescored_run import check_new_run, write_rescored_run
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.replay import take
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.file_names import executions_file, judgements_file, samples_file
from serve_eval.evaluation.storage.journal import read
from serve_eval.evaluation.storage.records.executions import Executions, permit
from serve_eval.evaluation.storage.records.judgements import Judgements
from serve_eval.evaluation.storage.records.reply_proofs import keep_standing, run_proofs
from serve_eval.evaluation.storage.records.scores import ScoreRecord, as_on_file, read_scores
from serve_eval.evaluation.storage.reports.report_file import find_report
from serve_eval.evaluation.task_run import recipe_of
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins import registry
from serve_eval.plugins.scope import with_scope
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.protocol.shared import TASKS, build_task
from serve_eval.schema import (
    DataRoots,
    Dataset,
    FailureKind,
    Plan,
    Program,
    Sample,
    Spec,
    Task,
    is_mutable,
)

NOT_SCORED = "not scored"
"""In the place of an outcome, for an answer without a line in the scores on file: the run was
killed before that."""
_CASES_HINT = (
    "The cases changed: the same serve-eval run asks what is new and scores the other answers"
    " again; for this command, put them back."
)


class RescoreSummary(msgspec.Struct, frozen=True):
    """What a line of scores/<task>.jsonl says of an answer."""

    outcome: str
    value: float
    answer: str | None = None

    @classmethod
    def of(cls, record: ScoreRecord) -> RescoreSummary:
        """Return what a record says."""
        return cls(record.outcome, record.value, record.answer)


class Changed(msgspec.Struct, frozen=True):
    """A sample that is not told the same of any more. `before` None: its score was not on file."""

    id: str
    target: str
    before: RescoreSummary | None
    after: RescoreSummary


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """One task. Values in points, over the `answered` of `planned` samples; `before` is that of the
    scores on file, `reported` the one of report.json (None: no report). `options` that changed:
    name -> (before, after). `moves` counts samples by outcome before and after, `changed` also has
    those of which only the value or the answer is another.
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

    @property
    def moved(self) -> int:
        """How many samples changed outcome."""
        return sum(count for _, _, count in self.moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A task with the samples that were asked, as it is to be scored now."""

    spec: Spec
    task: Task
    prepared: PreparedTask
    options: Mapping[str, tuple[object, object]]
    notes: tuple[str, ...]


@with_scope
def rescore(
    run: Path,
    settings: Sequence[str] = (),
    *,
    to: Path | None = None,
    allow_code_execution: bool = False,
    include_path: Sequence[str] = (),
) -> list[Rescored]:
    """Scores what a run folder holds again; `settings` are options as TASK.option=value.

    `to` is a new folder that becomes a run of its own: the same answers under the changed options,
    with a report where the run had one. `allow_code_execution`: programs that the run has not run
    may be. `include_path` has the folders of code that may be used, which those of the saved plan
    are not. Raises PlanError for an option that decides what is asked, DatasetError when the
    samples are not those of the run, RunFolderError for a folder that cannot be read or for a `to`
    that is not new, SandboxError for programs that must not or cannot be run.
    """
    saved = to_read(run, include_path)
    prints = run_folder.read_fingerprints(run)
    specs = _with_settings(saved, settings)
    prepared = prepare(replace(saved, allow_missing_reference=True))
    work = [_work(saved, spec, p, prints, run) for spec, p in zip(specs, prepared, strict=True)]
    other = any(one.options for one in work)  # a reference may have been taken under the old ones
    plan = replace(
        saved,
        tasks=tuple(specs),
        allow_missing_reference=saved.allow_missing_reference or other,
        allow_code_execution=allow_code_execution,
    )
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
    if to is not None:
        write_rescored_run(run, to, plan, now, report)
    return found


def _with_settings(saved: Plan, settings: Sequence[str]) -> list[Spec]:
    """The tasks with the options of `settings`. Raises PlanError for what is no option of
    theirs.
    """
    for text in settings:
        if text.partition(".")[0] in ("launcher", "verdict"):
            raise PlanError(
                f"--set {text}: only options of the run's tasks change how its answers are scored",
                hint="To judge a run by another rule: serve-eval verdict RUN --verdict RULE.",
            )
    tasks = {"tasks": to_file(saved)["tasks"], "model": saved.model or "any"}
    return list(resolve(tasks, {"set": list(settings)}, {}).plan.tasks)


def _work(
    saved: Plan,
    spec: Spec,
    prepared: PreparedTask,
    prints: Mapping[str, Mapping[str, str]],
    run: Path,
) -> _Work:
    name, stored = prepared.task.name, prints.get(prepared.task.name, {})
    if prepared.fingerprint["samples"] != stored.get("samples"):
        raise DatasetError(
            f"{name}: the data is not what {run} asked: its samples were {stored.get('samples')}, "
            f"now they are {prepared.fingerprint['samples']}",
            hint=(
                _CASES_HINT
                if is_mutable(name)
                else (
                    "Put the data back that the run was made with, and the references if they set"
                    " the number of samples: report.json names the files."
                )
            ),
        )
    differing = run_folder.differences(dict(stored), prepared.fingerprint)
    notes = (f"the task has changed since the run: {'; '.join(differing)}",) if differing else ()
    options = _compare_options(prepared.spec, spec)
    if not options:
        return _Work(
            spec=prepared.spec, task=prepared.task, prepared=prepared, options={}, notes=notes
        )
    alone = [o for o in options if _asks_something_else(saved, prepared, {o: options[o][1]})]
    if alone or _asks_something_else(
        saved, prepared, {o: after for o, (_, after) in options.items()}
    ):
        named = ", ".join(f"{name}.{option}" for option in alone or options)
        raise PlanError(
            f"--set {named}: decides what is asked, so the answers of {run} are none to it",
            hint=(
                "Ask anew with serve-eval run; here only options can change that decide how an"
                " answer is scored."
            ),
        )
    task = build_task(spec, f"tasks.{name}")
    if is_mutable(name):  # the scorer of a case stands in its sample
        asked = {sample.id for sample in prepared.dataset.samples}
        again = _load(saved, task, prepared.dataset.total)
        prepared = replace(
            prepared,
            dataset=replace(
                again, samples=[sample for sample in again.samples if sample.id in asked]
            ),
        )
    return _Work(spec=spec, task=task, prepared=prepared, options=options, notes=notes)


def _compare_options(old: Spec, new: Spec) -> dict[str, tuple[object, object]]:
    """Option -> value before and after, defaults filled in."""
    defaults = {
        name: option.default
        for name, option in registry.options_of(registry.load(TASKS, old.name)).items()
    }
    pairs = {
        name: (old.options.get(name, defaults.get(name)), value)
        for name, value in new.options.items()
    }
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def _asks_something_else(
    saved: Plan, prepared: PreparedTask, options: Mapping[str, object]
) -> bool:
    """Whether the task would send other requests, or expect other answers, with these options. No
    task has to say which of its options concern scoring alone: what it would ask tells.
    """
    try:
        spec = replace(prepared.spec, options={**prepared.spec.options, **options})
        task = build_task(spec, spec.name)
    except PlanError:
        return True  # it only makes sense together with another one
    asked = prepared.task
    wanted = asked.hypothesis.num_samples
    if (task.sampling, task.extra, task.hypothesis.num_samples) != (
        asked.sampling,
        asked.extra,
        wanted,
    ):
        return True
    old, new = (_load(saved, one, wanted or 1) for one in (asked, task))
    if is_mutable(task.name):  # an id says what is asked
        return [sample.id for sample in old.samples] != [sample.id for sample in new.samples]
    return fingerprint(prepared.task, old)["samples"] != fingerprint(task, new)["samples"]


def _load(saved: Plan, task: Task, wanted: int) -> Dataset:
    return task.load(
        DataRoots(roots=tuple(map(Path, saved.dataset_roots)), allow_hub=saved.allow_hub), wanted
    )


class _Comparison:
    """Takes each new score in the place of a file, and keeps where it differs from the one that was
    on file.
    """

    def __init__(self, before: Mapping[str, RescoreSummary]) -> None:
        self.before = before
        self.moves: Counter[tuple[str, str]] = Counter()
        self.changed: list[Changed] = []

    def write(self, new: ScoreRecord) -> None:
        before = self.before.get(new.id)
        if before == RescoreSummary.of(new) or before == (
            after := RescoreSummary.of(new := as_on_file(new))
        ):
            return
        self.changed.append(Changed(new.id, new.target, before, after))
        outcome = NOT_SCORED if before is None else before.outcome
        if outcome != after.outcome:
            self.moves[outcome, after.outcome] += 1


def _rescore(
    run: Path, work: _Work, reported: float | None, plan: Plan, scoring: ScoringProcesses
) -> Rescored:
    name = work.task.name
    lines = read_scores(run, name, unfinished=True)
    before = {sample: RescoreSummary.of(line) for sample, line in lines.items()}
    comparison = _Comparison(before)
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
            f"{unjudged} answers have no score: of what judges said on file too little could be"
            " read"
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
        notes.append(
            f"the scores on file were written after the report, whose value is {reported:.3f}"
        )
    if len(before) < result.scored:
        notes.append(
            f"{result.scored - len(before)} answers have no score on file: the run was stopped hard"
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
    """The value in points that scores on file give."""
    pairs = ((sample, line.score()) for sample, line in scored)
    return task.metric.scale * task.aggregation.of(pairs) if scored else None
