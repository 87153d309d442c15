"""Run `serve-eval data check`: compare data sets with checksums, and tasks with gold answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._common_options import ListOptions
from serve_eval.cli._options import command, settings_of
from serve_eval.cli.data import Root
from serve_eval.errors import DatasetError, PlanError
from serve_eval.frozen import freeze
from serve_eval.plan import shared_options
from serve_eval.plugins import extensions, registry

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from serve_eval.datasets.vault import FetchedSet
    from serve_eval.schema import Plan
    from serve_eval.workflows.gold import GoldCheck

_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Data sets, tasks, or names that are both (default: all data sets).",
    ),
]


@freeze
class CheckedTaskOptions:
    """Choose what is asked of a task."""

    title: ClassVar[str] = "Tasks"
    plan_only: ClassVar[tuple[str, ...]] = ("include_path", "allow_code_execution")
    limit: shared_options.Limit = None
    settings: shared_options.Set = None
    allow_code_execution: shared_options.AllowCodeExecution = None
    include_path: shared_options.IncludePath = None


@command()
def check(
    shown: ListOptions,
    asked: CheckedTaskOptions,
    names: _Names = None,
    root: Root = None,
) -> None:
    """Compare data sets with their checksums, and tasks with their gold answers.

    For a task, a server on this machine first answers each sample with the gold answer of the data,
    which must score full marks, then with a wrong one, which must score nothing. Both go the whole
    path of a run. If a name is a data set and a task, both are checked.

    Exit codes: 0 no difference, 1 a gold or wrong answer has another score, 2 a changed file.
    """
    from serve_eval.cli._ending import print_list
    from serve_eval.datasets import vault
    from serve_eval.datasets.local import find_sources
    from serve_eval.report.document.listing import ListEntry, Listing
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.verdicts.exit_code import FAIL
    from serve_eval.workflows.gold import make_entry

    root = root or vault.default_root(os.environ)
    settings = settings_of(asked)
    extensions.include(settings.get("include_path", ()))
    known = find_sources()
    sets, tasks = _sort_names(names or (), known)
    found = vault.verify({name: known[name] for name in (sets if names else known)}, root)
    checks = _check_tasks(tasks, settings, root)
    bad = [str(one.path) for one in found if one.state != vault.OK]
    entries = [
        ListEntry(str(one.path), f"{one.state}, of {one.data_set}", wrong=one.state != vault.OK)
        for one in found
    ]
    titles = [*([_count_files(found, root, len(bad))] if sets or not names else [])]
    titles += [_count_tasks(checks)] if checks else []
    print_list(
        Listing(
            "; ".join(titles),
            [*(make_entry(one) for one in checks), *entries],
            result=pretty_json(checks) if checks else b"",
        ),
        shown,
    )
    if not all(one.passed for one in checks):
        raise typer.Exit(FAIL)
    if bad:
        raise DatasetError(
            f"changed since they were fetched or published: {', '.join(bad)}",
            hint="Delete these files and fetch them again: serve-eval data fetch NAME.",
        )


def _sort_names(names: Sequence[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the names that are data sets, and those that are tasks; a name may be both.

    Raises PlanError for a name that is neither.
    """
    from serve_eval.protocol.shared import TASKS

    files = registry.names(TASKS)
    sets = [name for name in names if name in known]
    tasks = [name for name in names if name.partition(":")[0] in files]
    problems = [
        f"unknown data set or task {name!r}.{registry.nearest(name, [*known, *files])}"
        for name in names
        if name not in sets and name not in tasks
    ]
    if problems:
        raise PlanError(problems)
    return sets, tasks


def _check_tasks(tasks: Sequence[str], settings: Mapping[str, Any], root: Path) -> list[GoldCheck]:
    """Check tasks one after the other, and say on standard error which."""
    from serve_eval.cli._async import run_async
    from serve_eval.cli._streams import say
    from serve_eval.workflows.gold import check_gold

    plans = _list_plans(tasks, settings, root) if tasks else []

    async def check_all() -> list[GoldCheck]:
        found: list[GoldCheck] = []
        for plan in plans:
            say(f"serve-eval data check: asking {plan.tasks[0].name}")
            found += await check_gold(plan, os.environ)
        return found

    return run_async(check_all()) if plans else []


def _list_plans(tasks: Sequence[str], settings: Mapping[str, Any], root: Path) -> list[Plan]:
    """Return a plan for each task. Raises PlanError for tasks or options that do not exist."""
    from dataclasses import replace

    from serve_eval.cli._sides import with_plan
    from serve_eval.plan.settings import read_defaults
    from serve_eval.workflows.gold import use_server

    given = {**settings, "tasks": list(tasks), "dataset_root": str(root), "no_reference": True}
    file = read_defaults().put_below({"model": "simulated", "launcher": "simulated"})
    plan = use_server(with_plan(file, given).plan)
    return [replace(plan, tasks=(task,)) for task in plan.tasks]


def _count_files(found: Sequence[FetchedSet], root: Path, changed: int) -> str:
    if not found:
        return f"{root}: holds no fetched file and no file with a known checksum"
    return f"{len(found)} files in {root}, {changed} changed"


def _count_tasks(checks: Sequence[GoldCheck]) -> str:
    wrong = sum(not one.passed for one in checks)
    tasks = "1 task" if len(checks) == 1 else f"{len(checks)} tasks"
    return f"{tasks} asked for gold, {wrong} with another score"
