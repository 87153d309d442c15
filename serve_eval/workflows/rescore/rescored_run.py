"""Determine how a task is scored again, and write the new run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import serve_eval
from serve_eval.errors import DatasetError, PlanError, RunFolderError
from serve_eval.evaluation.evaluate import judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.frozen import freeze
from serve_eval.plan.chosen_samples import shard_fields
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.prepared_task import PreparedTask, find_roots
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import registry
from serve_eval.protocol.sampling_fields import fingerprint
from serve_eval.protocol.shared import TASKS, build_task, note_route
from serve_eval.schema import Dataset, Plan, Report, Spec, Task, is_mutable
from serve_eval.storage import run_folder
from serve_eval.storage.copied_run import (
    ANSWERS_FROM,
    check_copy,
    copy_answers,
    end_copy,
    mark_copy,
    open_copy,
)
from serve_eval.storage.json_files import differences
from serve_eval.storage.report_file import write_report

_CASES_HINT = (
    "The cases changed. Repeat the same serve-eval run, which asks the new ones and scores the"
    " other answers again; or restore the old cases for this command."
)


@freeze
class TaskToRescore:
    """A task with the samples that were asked, as it is to be scored now."""

    spec: Spec
    task: Task
    prepared: PreparedTask
    options: Mapping[str, tuple[object, object]]
    notes: tuple[str, ...]


def apply_settings(saved: Plan, settings: Sequence[str]) -> list[Spec]:
    """Return the tasks with the options of `settings`.

    Raises PlanError for anything that is not an option of the tasks.
    """
    for text in settings:
        if text.partition(".")[0] in ("launcher", "verdict"):
            raise PlanError(
                f"--set {text}: only options of the run's tasks change how its answers are scored",
                hint="To judge a run with another rule: serve-eval judge RUN --verdict RULE.",
            )
    tasks = {"tasks": to_file(saved)["tasks"], "model": saved.model or "any"}
    return list(resolve(tasks, {"set": list(settings)}, {}).plan.tasks)


def task_to_rescore(
    saved: Plan,
    spec: Spec,
    prepared: PreparedTask,
    prints: Mapping[str, Mapping[str, str]],
    run: Path,
) -> TaskToRescore:
    """Return a task of `run`, prepared to be scored under `spec`; `prints` are its fingerprints.

    Raises DatasetError if the data changed, and PlanError for an option that decides what is asked.
    """
    name, stored = prepared.task.name, prints.get(prepared.task.name, {})
    if prepared.fingerprint["samples"] != stored.get("samples"):
        raise DatasetError(
            f"{name}: the data is not what {run} asked: its samples were {stored.get('samples')}, "
            f"now they are {prepared.fingerprint['samples']}",
            hint=(
                _CASES_HINT
                if is_mutable(name)
                else (
                    "Restore the data of the run, and its references if they set the number of"
                    " samples: report.json names the files."
                )
            ),
        )
    differing = differences(stored, prepared.fingerprint)
    notes = (f"the task has changed since the run: {'; '.join(differing)}",) if differing else ()
    options = _compare_options(prepared.spec, spec)
    if not options:
        return TaskToRescore(
            spec=prepared.spec, task=prepared.task, prepared=prepared, options={}, notes=notes
        )
    alone = [o for o in options if _asks_something_else(saved, prepared, {o: options[o][1]})]
    if alone or _asks_something_else(
        saved, prepared, {o: after for o, (_, after) in options.items()}
    ):
        named = ", ".join(f"{name}.{option}" for option in alone or options)
        raise PlanError(
            f"--set {named}: decides what is asked, so the answers of {run} do not fit it",
            hint=(
                "Ask again with serve-eval run. This command accepts only options that decide how"
                " an answer is scored."
            ),
        )
    task = note_route(build_task(spec, f"tasks.{name}"), saved.connection.route)
    if is_mutable(name):  # A sample names the scorer of its case.
        asked = {sample.id for sample in prepared.dataset.samples}
        again = _load(saved, task, prepared.dataset.total)
        prepared = replace(
            prepared,
            dataset=replace(
                again, samples=[sample for sample in again.samples if sample.id in asked]
            ),
        )
    return TaskToRescore(spec=spec, task=task, prepared=prepared, options=options, notes=notes)


def _compare_options(old: Spec, new: Spec) -> dict[str, tuple[object, object]]:
    """Return changed options with their values before and after, defaults filled in."""
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
    """Return whether these options change the requests or the expected answers of the task.

    Tasks do not declare which options concern scoring only: the test is what the task would ask.
    """
    try:
        spec = replace(prepared.spec, options={**prepared.spec.options, **options})
        task = note_route(build_task(spec, spec.name), saved.connection.route)
    except PlanError:
        return True  # It is only valid together with another option.
    asked = prepared.task
    wanted = asked.hypothesis.num_samples
    if (task.sampling, task.extra, task.hypothesis.num_samples) != (
        asked.sampling,
        asked.extra,
        wanted,
    ):
        return True
    old, new = (_load(saved, one, wanted or 1) for one in (asked, task))
    if is_mutable(task.name):  # An id identifies what is asked.
        return [sample.id for sample in old.samples] != [sample.id for sample in new.samples]
    return fingerprint(prepared.task, old)["samples"] != fingerprint(task, new)["samples"]


def _load(saved: Plan, task: Task, wanted: int) -> Dataset:
    return task.load(find_roots(saved), wanted)


_HINT = "Without -o, the values are still printed."


def check_new_run(
    run: Path,
    to: Path,
    plan: Plan,
    prepared: Sequence[PreparedTask],
    prints: Mapping[str, Mapping[str, str]],
) -> None:
    """Raise RunFolderError or PlanError if the new run would make false claims.

    Call it before anything is written. `prepared` are the tasks as `run` asked them, each with the
    task as it scores now; `prints` are the run's fingerprints.
    """
    for p in prepared:
        stored, now = prints[p.task.name], p.fingerprint
        other = [
            name
            for name in stored.keys() & now.keys()
            if name != "version" and stored[name] != now[name]
        ]
        if other:
            raise RunFolderError(
                f"{p.task.name} no longer asks what {run} asked ({', '.join(sorted(other))}"
                " differ), so a new folder would claim requests that were never sent",
                hint=_HINT,
            )
    if to.resolve().is_relative_to(run.resolve()):
        raise RunFolderError(
            f"{to} is inside {run}, which must not change", hint="Choose another folder with -o."
        )
    check_copy(to, mark_copy([run], plan))
    if [p.fingerprint for p in prepare(plan)] != list(_fingerprints(prepared).values()):
        raise PlanError(
            "the reference that sets the number of samples was taken under another protocol",
            hint=_HINT,
        )


def write_rescored_run(
    run: Path, to: Path, plan: Plan, prepared: Sequence[PreparedTask], report: Report | None
) -> Report | None:
    """Write a run folder with the same answers and sessions, and with a report if `run` has one.

    Return that report. Raises RunFolderError if it cannot be written.
    """
    prints, mark = _fingerprints(prepared), mark_copy([run], plan)
    try:
        with open_copy(to, mark, plan, prints, own=run_folder.plan_and_owner(run)[1]) as folder:
            copy_answers(run, folder, prints)
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or to}: cannot be written: {error.strerror}"
        ) from error
    judged = judge_again(plan, to)  # writes the scores too
    if report is not None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        again = f"{ANSWERS_FROM}{run}, scored again at {now} by serve-eval {serve_eval.__version__}"
        judged = replace(
            judged,
            warnings=(*judged.warnings, again),
            started_at=report.started_at,
            wall_s=report.wall_s,
        )
        write_report(to, judged)
    end_copy(to, mark)
    return None if report is None else judged


def _fingerprints(prepared: Sequence[PreparedTask]) -> dict[str, dict[str, str]]:
    return {
        p.task.name: {**fingerprint(p.task, p.dataset), **shard_fields(p.fingerprint)}
        for p in prepared
    }
