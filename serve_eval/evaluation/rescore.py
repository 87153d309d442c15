"""The answers of a run, scored again: by the scorers as they are now, or under another option of a task that decides
only how an answer is read, such as the filter of GSM8K. Nothing is asked, and the run's folder stays as it is.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import serve_eval
from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.engine.accumulator import Tally, take
from serve_eval.evaluation.engine.reply_proofs import FILE as STEPS
from serve_eval.evaluation.engine.reply_proofs import Proofs, standing
from serve_eval.evaluation.engine.scoring import ScoringProcesses
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.plan.resolve import resolve, to_file
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.executions import FOLDER, Executions, permitted
from serve_eval.evaluation.storage.journal import read
from serve_eval.evaluation.storage.judgements import FOLDER as JUDGED
from serve_eval.evaluation.storage.judgements import Judgements
from serve_eval.evaluation.storage.order_seed import ORDER_FILE
from serve_eval.evaluation.task_run import recipe_of
from serve_eval.evaluation.trust import to_read
from serve_eval.plugins import registry
from serve_eval.plugins.scope import scoped
from serve_eval.protocol.fingerprint import fingerprint
from serve_eval.protocol.shared import TASKS, build_task
from serve_eval.schema import (
    DataRoots,
    Dataset,
    FailureKind,
    Outcome,
    Plan,
    Program,
    Sample,
    Score,
    Spec,
    Task,
    file_stem,
    lives,
)

NOT_SCORED = "not scored"
"""In the place of an outcome, for an answer without a line in the scores on file: the run was killed before that."""


_CASES_HINT = (
    "The cases changed: the same serve-eval run asks what is new and scores the other answers again; for this command, "
    "put them back."
)


class Told(msgspec.Struct, frozen=True):
    """What a line of scores/<task>.jsonl says of an answer."""

    outcome: str
    value: float
    answer: str | None = None


class Line(msgspec.Struct):
    """A line of scores/<task>.jsonl."""

    id: str
    outcome: str
    value: float
    target: str
    answer: str | None = None
    parts: dict[str, float] = {}

    def told(self) -> Told:
        return Told(self.outcome, self.value, self.answer)

    def score(self) -> Score:
        return Score(value=self.value, outcome=Outcome(self.outcome), answer=self.answer, parts=self.parts)


class Changed(msgspec.Struct, frozen=True):
    """A sample that is not told the same of any more. `before` None: its score was not on file."""

    id: str
    target: str
    before: Told | None
    after: Told


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """One task. Values in points, over the `answered` of `planned` samples; `before` is that of the scores on file,
    `reported` the one of report.json (None: no report). `options` that changed: name -> (before, after). `moves` counts
    samples by outcome before and after, `changed` also has those of which only the value or the answer is another."""

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


@scoped
def rescore(
    run: Path,
    settings: Sequence[str] = (),
    *,
    to: Path | None = None,
    allow_code_execution: bool = False,
    include_path: Sequence[str] = (),
) -> list[Rescored]:
    """Scores what a run folder holds again; `settings` are options as TASK.option=value.

    `to` is a new folder that becomes a run of its own: the same answers under the changed options, with a report where
    the run had one. `allow_code_execution`: programs that the run has not run may be. `include_path` has the folders of
    code that may be used, which those of the saved plan are not. Raises PlanError for an option
    that decides what is asked, DatasetError when the samples are not those of the run, RunFolderError for a folder that
    cannot be read or for a `to` that is not new, SandboxError for programs that must not or cannot be run.
    """
    saved = to_read(run, include_path)
    prints = run_folder.saved_fingerprints(run)
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
    if to is not None:
        _check_new(run, to, plan, work, prints)
    try:
        report = _report(run)
        values = {task["result"]["task"]: task["result"]["value"] for task in report.get("tasks", ())}
        recipes = {
            one.task.name: recipe_of(saved, one.spec, one.prepared.wanted)
            for one in work
            if one.task.scoring != "inline"
        }
        with ScoringProcesses(recipes, limit_s=plan.limits.scorer_timeout_s) as scoring:
            found = [_rescore(run, one, values.get(one.task.name), plan, scoring) for one in work]
    except OSError as error:
        raise RunFolderError(f"{error.filename or run}: cannot be read: {error.strerror}") from error
    if to is not None:
        _write(run, to, plan, work, report)
    return found


def _with_settings(saved: Plan, settings: Sequence[str]) -> list[Spec]:
    """The tasks with the options of `settings`. Raises PlanError for what is no option of theirs."""
    for text in settings:
        if text.partition(".")[0] in ("launcher", "verdict"):
            raise PlanError(
                f"--set {text}: only options of the run's tasks change how its answers are scored",
                hint="To judge a run by another rule: serve-eval verdict RUN --verdict RULE.",
            )
    tasks = {"tasks": to_file(saved)["tasks"], "model": saved.model or "any"}
    return list(resolve(tasks, {"set": list(settings)}, {}).plan.tasks)


def _work(saved: Plan, spec: Spec, p: PreparedTask, prints: Mapping[str, Mapping[str, str]], run: Path) -> _Work:
    name, stored = p.task.name, prints.get(p.task.name, {})
    if p.fingerprint["samples"] != stored.get("samples"):
        raise DatasetError(
            f"{name}: the data is not what {run} asked: its samples were {stored.get('samples')}, "
            f"now they are {p.fingerprint['samples']}",
            hint=_CASES_HINT
            if lives(name)
            else "Put the data back that the run was made with, and the references if they set the number of samples: "
            "report.json names the files.",
        )
    differing = run_folder.differences(dict(stored), p.fingerprint)
    notes = (f"the task has changed since the run: {'; '.join(differing)}",) if differing else ()
    options = _changed_options(p.spec, spec)
    if not options:
        return _Work(spec=p.spec, task=p.task, prepared=p, options={}, notes=notes)
    alone = [o for o in options if _asks_something_else(saved, p, {o: options[o][1]})]
    if alone or _asks_something_else(saved, p, {o: after for o, (_, after) in options.items()}):
        named = ", ".join(f"{name}.{option}" for option in alone or options)
        raise PlanError(
            f"--set {named}: decides what is asked, so the answers of {run} are none to it",
            hint="Ask anew with serve-eval run; here only options can change that decide how an answer is scored.",
        )
    task = build_task(spec, f"tasks.{name}")
    if lives(name):  # the scorer of a case stands in its sample
        asked = {sample.id for sample in p.dataset.samples}
        again = _load(saved, task, p.dataset.total)
        p = replace(p, dataset=replace(again, samples=[sample for sample in again.samples if sample.id in asked]))
    return _Work(spec=spec, task=task, prepared=p, options=options, notes=notes)


def _changed_options(old: Spec, new: Spec) -> dict[str, tuple[object, object]]:
    """Option -> value before and after, defaults filled in."""
    defaults = {name: option.default for name, option in registry.options_of(registry.load(TASKS, old.name)).items()}
    pairs = {name: (old.options.get(name, defaults.get(name)), value) for name, value in new.options.items()}
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def _asks_something_else(saved: Plan, p: PreparedTask, options: Mapping[str, object]) -> bool:
    """Whether the task would send other requests, or expect other answers, with these options. No task has to say which
    of its options concern scoring alone: what it would ask tells."""
    try:
        task = build_task(Spec(name=p.spec.name, options={**p.spec.options, **options}), p.spec.name)
    except PlanError:
        return True  # it only makes sense together with another one
    wanted = p.task.hypothesis.num_samples
    if (task.sampling, task.extra, task.hypothesis.num_samples) != (p.task.sampling, p.task.extra, wanted):
        return True
    old, new = (_load(saved, one, wanted or 1) for one in (p.task, task))
    if lives(task.name):  # an id says what is asked
        return [sample.id for sample in old.samples] != [sample.id for sample in new.samples]
    return fingerprint(p.task, old)["samples"] != fingerprint(task, new)["samples"]


def _load(saved: Plan, task: Task, wanted: int) -> Dataset:
    return task.load(DataRoots(roots=tuple(map(Path, saved.dataset_roots)), allow_hub=saved.allow_hub), wanted)


# --------------------------------------------------------------------------------------------------- before and after


class _Comparison:
    """Takes each new score in the place of a file, and keeps where it differs from the one that was on file."""

    def __init__(self, before: Mapping[str, Told]) -> None:
        self.before = before
        self.moves: Counter[tuple[str, str]] = Counter()
        self.changed: list[Changed] = []

    def write(self, line: bytes) -> None:
        new = _decoder.decode(line)
        before, after = self.before.get(new.id), new.told()
        if before == after:
            return
        self.changed.append(Changed(new.id, new.target, before, after))
        outcome = NOT_SCORED if before is None else before.outcome
        if outcome != after.outcome:
            self.moves[outcome, after.outcome] += 1


_decoder = msgspec.json.Decoder(Line)


def _rescore(run: Path, work: _Work, reported: float | None, plan: Plan, scoring: ScoringProcesses) -> Rescored:
    name = work.task.name
    lines = scores_on_file(run / "scores" / f"{file_stem(name)}.jsonl")
    before = {sample: line.told() for sample, line in lines.items()}
    comparison = _Comparison(before)
    samples, journal = work.prepared.dataset.samples, run / "samples" / f"{file_stem(name)}.jsonl"
    executions = Executions(run / FOLDER / f"{file_stem(name)}.jsonl", keep=False)
    judgements = Judgements(run / JUDGED / f"{file_stem(name)}.jsonl")
    tally = Tally(
        work.task,
        samples,
        comparison,
        repeats=plan.times(name),
        executions=executions,
        judgements=judgements,
        apart=scoring.of(name),
    )
    if journal.exists():
        proofs = Proofs(run / STEPS)
        if programs := executions.pending(work.task, tally.samples, standing(read(journal), proofs)):
            asyncio.run(_run_programs(name, programs, executions, allowed=plan.allow_code_execution))
        take(standing(read(journal), proofs), tally)
    result, notes = tally.result(), list(work.notes)
    if unjudged := result.failures.get(FailureKind.JUDGE_ERROR):
        notes.append(f"{unjudged} answers have no score: of what judges said on file too little could be read")
    notes += [one.line for one in result.scorer_errors]
    on_file = _value(work.task, [(sample, lines[sample.id]) for sample in tally.samples if sample.id in lines])
    if reported is not None and on_file is not None and not math.isclose(reported, on_file, abs_tol=1e-9):
        notes.append(f"the scores on file were written after the report, whose value is {reported:.3f}")
    if len(before) < result.scored:
        notes.append(f"{result.scored - len(before)} answers have no score on file: the run was stopped hard")
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


async def _run_programs(name: str, programs: dict[str, Program], executions: Executions, *, allowed: bool) -> None:
    await executions.run(name, programs, *await permitted([name], allowed=allowed), None)


def _value(task: Task, scored: Sequence[tuple[Sample, Line]]) -> float | None:
    """The value in points that scores on file give."""
    pairs = ((sample, line.score()) for sample, line in scored)
    return task.metric.scale * task.aggregation.of(pairs) if scored else None


def scores_on_file(path: Path) -> dict[str, Line]:
    """Sample -> its score; empty without a file. Raises RunFolderError for a damaged one."""
    if not path.exists():
        return {}
    try:
        return {line.id: line for line in map(_decoder.decode, _whole_lines(path))}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}", hint="Delete it: every answer is then scored without a comparison."
        ) from error


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


def _report(run: Path) -> dict[str, Any]:
    """The report as it stands in the folder, empty for an unfinished run. Raises RunFolderError for a damaged one."""
    file = run / run_folder.REPORT_FILE
    try:
        report: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file.exists() else {}
    except msgspec.MsgspecError as error:
        raise RunFolderError(f"{file} cannot be read: {error}", hint=f"serve-eval run --resume {run}") from error
    return report


# ------------------------------------------------------------------------------------------------------- a new folder


def _check_new(run: Path, to: Path, plan: Plan, work: Sequence[_Work], prints: Mapping[str, Mapping[str, str]]) -> None:
    """Raises RunFolderError or PlanError before anything is written."""
    for one in work:
        stored, now = prints[one.task.name], one.prepared.fingerprint
        other = [name for name in stored.keys() & now.keys() if name != "version" and stored[name] != now[name]]
        if other:
            raise RunFolderError(
                f"{one.task.name} asks otherwise than when {run} was made: {', '.join(sorted(other))}; a new folder "
                "would claim what was not asked",
                hint="Without -o the values are printed all the same.",
            )
    if to.resolve().is_relative_to(run.resolve()):
        raise RunFolderError(f"{to} lies within {run}, which stays as it is", hint="Choose another folder with -o.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise RunFolderError(f"{to} exists and is not an empty folder", hint="Choose another folder with -o.")
    if [p.fingerprint for p in prepare(plan)] != [fingerprint(one.task, one.prepared.dataset) for one in work]:
        raise PlanError(
            "the reference that sets the number of samples was taken under another protocol",
            hint="Without -o the values are printed all the same.",
        )


def _write(run: Path, to: Path, plan: Plan, work: Sequence[_Work], report: Mapping[str, Any]) -> None:
    """A run folder with the same answers and sessions, and a report where `run` has one."""
    prints = {one.task.name: fingerprint(one.task, one.prepared.dataset) for one in work}
    try:
        with run_folder.open_folder(to, plan, prints, own=run_folder.plan_and_owner(run)[1]) as folder:
            kept = [
                Path(place) / f"{file_stem(name)}.jsonl" for place in ("samples", FOLDER, JUDGED) for name in prints
            ]
            for place in (*map(Path, (run_folder.ENVIRONMENT_FILE, ORDER_FILE, run_folder.LOOKS_FILE, STEPS)), *kept):
                if (run / place).exists():
                    (folder / place).parent.mkdir(mode=0o700, exist_ok=True)
                    _copy_private(run / place, folder / place)
    except OSError as error:
        raise RunFolderError(f"{error.filename or to}: cannot be written: {error.strerror}") from error
    judged = judge_again(plan, to)  # writes the scores too
    if report:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        again = f"the answers are those of {run}, scored again at {now} by serve-eval {serve_eval.__version__}"
        times = {"started_at": report["started_at"], "wall_s": report["wall_s"]}
        judged = replace(judged, warnings=(*judged.warnings, again), **times)
        run_folder.write_private(to / run_folder.REPORT_FILE, run_folder.pretty_json(judged))


def _copy_private(source: Path, target: Path) -> None:
    with source.open("rb") as old, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as new:
        shutil.copyfileobj(old, new)
