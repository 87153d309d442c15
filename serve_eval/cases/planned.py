"""Add the tasks of case files to a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.schema import Spec, is_mutable

FAMILY = "cases:"


@freeze
class PlannedCases:
    """The tasks of a plan, including those of its case files.

    `iterations` is how often each prompt of a task is asked, for the tasks whose file sets it.
    `notes` name the modules that have no usable case.
    """

    tasks: list[Spec]
    iterations: Mapping[str, int]
    notes: tuple[str, ...]


def plan_tasks(
    tasks: Sequence[Spec], paths: Sequence[str], configured: Collection[str] = ()
) -> PlannedCases:
    """Return the tasks, including a task for each module of the files.

    If `tasks` names modules as cases:NAME, only these are added. `paths` are absolute. `configured`
    tasks get further options later, so their questions are not yet known. Raises PlanError with
    every problem of the files.
    """
    from serve_eval.cases import file  # Imported here, because most plans have no cases.
    from serve_eval.cases.questions import questions

    files, problems, notes = file.read(paths), [], []
    place: dict[str, Any] = {"path": paths[0] if len(paths) == 1 else list(paths)}
    named = [task.name for task in tasks if is_mutable(task.name) and "path" not in task.options]
    tasks = [
        replace(task, options={**place, **task.options}) if task.name in named else task
        for task in tasks
    ]
    wanted = [name.removeprefix(FAMILY) for name in named] or list(files.modules)
    there = {task.name for task in tasks}
    own = there - {*named}  # Tasks that name their own files.
    iterations = {
        f"{FAMILY}{name}": files.modules[name].common["iterations"]
        for name in wanted
        if f"{FAMILY}{name}" not in own
        and name in files.modules
        and "iterations" in files.modules[name].common
    }
    for name in wanted:
        if f"{FAMILY}{name}" in there:
            continue  # The plan builds it with its options, and reports its problems.
        if f"{FAMILY}{name}" in configured:
            tasks.append(Spec(name=f"{FAMILY}{name}", options=place))
            continue
        try:
            found = questions(files, name)
        except PlanError as error:
            problems += error.problems
            continue
        if found.asked:
            tasks.append(Spec(name=f"{FAMILY}{name}", options=place))
        else:
            reasons = dict.fromkeys(one.reason for one in found.skipped)
            notes.append(
                f"{FAMILY}{name}: all {len(found.skipped)} cases are skipped: {'; '.join(reasons)}"
            )
    if problems:
        raise PlanError(list(dict.fromkeys(problems)))
    return PlannedCases(tasks=tasks, iterations=iterations, notes=tuple(notes))
