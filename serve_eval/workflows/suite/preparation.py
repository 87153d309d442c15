"""Prepare a suite: check its runs, grouped by server, or bind its folder.

suite.json            the runs with their plans and the waivers, signed by the user (see ownership)
runs/<name>/          one ordinary run folder per run
servers/<number>/     logs of the servers that several runs share
suite_report.json     the report, after every run was tried
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from serve_eval.errors import (
    DatasetError,
    NotComparableError,
    PlanError,
    ReferenceFileError,
    RunFolderError,
    SandboxError,
    ServeEvalError,
)
from serve_eval.evaluation.build_report import check_pairs
from serve_eval.evaluation.earlier_run import Rerun
from serve_eval.evaluation.launch import check_launcher
from serve_eval.evaluation.preflight import check_margins
from serve_eval.evaluation.prepare import join_errors, prepare
from serve_eval.evaluation.shared_server import server_key
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    Connection,
    Plan,
    Report,
    Scalar,
    Spec,
    Suite,
    SuiteRun,
    TaskReport,
    is_mutable,
)
from serve_eval.storage import run_folder
from serve_eval.storage.command_folder import check_free
from serve_eval.storage.file_names import SERVERS, SUITE_RUNS
from serve_eval.storage.json_files import differences
from serve_eval.storage.report_file import read_report
from serve_eval.storage.run_folder import FREE_FIELDS
from serve_eval.storage.story_files import SUITE
from serve_eval.storage.story_results import read_suite, set_aside_report, write_suite

NAMED = 3
"""Number of runs that a message names."""
_ANY = Spec(name="external")


class RefusedRun(NamedTuple):
    """A run whose plan is wrong, with its problems, each with its place in the file."""

    name: str
    attributes: Mapping[str, Scalar]
    problems: Sequence[str]


@freeze
class CheckedRun:
    """The tasks of a run before it starts, and the errors that would refuse it."""

    prepared: Sequence[PreparedTask] = ()
    errors: Sequence[ServeEvalError] = ()


def name_runs(refused: Iterable[RefusedRun]) -> list[str]:
    """Return every problem once, with the runs that have it."""
    found: dict[str, list[str]] = {}
    for run in refused:
        for problem in dict.fromkeys(run.problems):
            found.setdefault(problem, []).append(run.name)
    return [f"{problem} ({list_runs(names)})" for problem, names in found.items()]


def list_runs(names: Sequence[str]) -> str:
    """Return the names of runs in one text: "run a", or "runs a, b, c and 2 more"."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"run{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}"


def check_tasks(plan: Plan) -> CheckedRun:
    """Return the tasks of a plan, and the error of what cannot be asked or judged.

    The references of a plan without a model are not known yet.
    """
    may_lack = replace(plan, allow_missing_reference=True)
    try:
        if plan.model is None:
            return CheckedRun(prepared=prepare(may_lack))
        prepared = prepare(plan)
        check_pairs(plan, prepared)
        check_margins(plan, prepared)
    except ServeEvalError as error:
        try:
            return CheckedRun(prepared=prepare(may_lack), errors=(error,))
        except ServeEvalError:
            return CheckedRun(errors=(error,))
    return CheckedRun(prepared=prepared)


@with_scope
def check_suite(suite: Suite, out_dir: Path, rerun: Rerun, notify: Callable[[str], None]) -> None:
    """Check the unfinished runs of a suite before anything starts.

    Raises PlanError, with every run, if a plan is wrong. Missing data and references stop only
    their own runs, since answers to the others are worth having: `notify` receives a line.
    """
    check_folder(out_dir, suite)
    runs = [
        run
        for run in keep_names(out_dir, suite)[0].runs
        if read_kept_report(out_dir, run, rerun) is None
    ]
    wrong: list[RefusedRun] = []
    stopped: dict[str, list[str]] = {}
    asked: list[tuple[Plan, CheckedRun]] = []
    for run in runs:
        extensions.include(run.plan.include_path)
        errors, commands = _check_start(run.plan)
        errors = [*errors, *_check_once(run.plan, asked).errors]
        if problems := [one for e in errors if isinstance(e, PlanError) for one in _explain(e)]:
            wrong.append(RefusedRun(run.name, run.attributes, problems))
        for error in errors:
            stopped.setdefault(str(error).partition("\n")[0], []).append(run.name)
        for program in find_missing(commands):
            stopped.setdefault(f"{program} is not on PATH", []).append(run.name)
    if wrong:
        raise PlanError(name_runs(wrong))
    for message, names in stopped.items():
        notify(f"warning: {list_runs(names)} cannot be asked or judged as a whole: {message}")


OF_ONE_TASK = (DatasetError, NotComparableError, ReferenceFileError, SandboxError)
"""Errors before the first request that concern single tasks of a plan."""


@with_scope
def split_plan(plan: Plan) -> tuple[Plan, ServeEvalError] | None:
    """Return the plan with the tasks that can be asked, and the error of the others.

    `plan` names its model. Return None if all tasks or no task can be asked, since then no single
    task is to blame.
    """
    extensions.include(plan.include_path)
    good, errors = list[Spec](), list[ServeEvalError]()
    for spec in plan.tasks:
        alone = replace(plan, tasks=(spec,))
        try:
            check_pairs(alone, prepare(alone))
        except OF_ONE_TASK as error:
            errors.append(error)
        except ServeEvalError:
            good.append(spec)  # an error of the whole plan, which its other tasks may mend
        else:
            good.append(spec)
    if not good or not errors:
        return None
    return replace(plan, tasks=tuple(good)), join_errors(errors)


def find_missing(commands: Iterable[Sequence[str]]) -> list[str]:
    """Return the programs of command lines that are not on PATH of this machine."""
    programs = (
        next((word for word in words if word != "env" and "=" not in word), "")
        for words in commands
        if not any(word.startswith("PATH=") for word in words)
    )
    return [name for name in dict.fromkeys(programs) if name and shutil.which(name) is None]


def _explain(error: PlanError) -> list[str]:
    """Return the problems of an error, the last one with its hint."""
    *first, last = error.problems
    return [*first, f"{last}. {error.hint}" if error.hint else last]


def _check_start(plan: Plan) -> tuple[list[ServeEvalError], list[list[str]]]:
    """Return the errors and the command lines of a plan's launcher."""
    try:
        return [], check_launcher(plan)
    except PlanError as error:
        return [error], []


def _check_once(plan: Plan, asked: list[tuple[Plan, CheckedRun]]) -> CheckedRun:
    """Return the check of a plan's tasks, which runs at several endpoints share."""
    bare = replace(plan, launcher=_ANY, connection=Connection())
    for known, checked in asked:
        if known == bare:
            return checked
    checked = replace(check_tasks(plan), prepared=())  # Data of all runs would fill the memory.
    asked.append((bare, checked))
    return checked


def groups(runs: Sequence[SuiteRun]) -> list[list[SuiteRun]]:
    """Group runs by the server that they need, in the order of first appearance.

    A running endpoint counts as a server, so its runs follow each other.
    """
    found: dict[str, list[SuiteRun]] = {}
    for run in runs:
        found.setdefault(server_key(run.plan), []).append(run)
    return list(found.values())


@contextmanager
def open_folder(path: Path, suite: Suite) -> Iterator[Path]:
    """Create or reopen the folder, and lock it until the end of the block.

    The suite is saved with a signature, because this user provided or trusted it. It may have more
    runs and tasks than the last time. Names, waivers and attributes may differ, because they change
    no request, and so may all of a run without an answer. Raises RunFolderError if another process
    uses the folder, or if it contains other files or runs that the suite lacks or changes (the
    message lists them).
    """
    with run_folder.hold(path, SUITE.plan, "suite"):
        if SUITE.has_plan(path):
            _check_kept(path, suite)
        set_aside_report(path)
        write_suite(path, suite)
        try:
            for folder in (SUITE_RUNS, SERVERS):
                (path / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{error.filename}: cannot be used as a folder: {error.strerror}"
            ) from error
        yield path


def check_folder(path: Path, suite: Suite) -> None:
    """Raise RunFolderError if `open_folder` would refuse the folder. Nothing is written."""
    check_free(path, SUITE.plan, "suite")
    if SUITE.has_plan(path):
        _check_kept(path, keep_names(path, suite)[0])


def read_kept_report(path: Path, run: SuiteRun, rerun: Rerun = "failed") -> Report | None:
    """Return the report of a finished run, or None if the run has to continue.

    A finished run has the same plan, an answer to every sample, unchanged cases, and nothing that
    `rerun` sends again or that a limit left unasked. The address of a running endpoint may differ,
    because the run may have been finished by hand elsewhere.
    """
    try:
        report = read_report(path / SUITE_RUNS / run.name)
    except RunFolderError:
        return None
    model = run.plan.model or report.plan.model  # The endpoint's model if the plan names none.
    same = describe_asked(report.plan) == describe_asked(replace(run.plan, model=model))
    living = [task for task in report.tasks if is_mutable(task.spec.name)]
    if rerun == "all" or (living and rerun in ("changed", "version")):
        return None
    if (
        not same
        or any(task.result.failed or task.verdict.budget for task in report.tasks)
        or not _as_they_were(run.plan, report, living)
    ):
        return None
    return report


def _as_they_were(plan: Plan, report: Report, living: Sequence[TaskReport]) -> bool:
    """Return True if the cases and repeats of a plan are those of its report."""
    specs = {spec.name: spec for spec in plan.tasks if is_mutable(spec.name)}
    if set(specs) != {task.spec.name for task in living} or any(
        plan.times(task.result.task) != report.plan.times(task.result.task) for task in living
    ):
        return False
    if not living:
        return True
    try:
        prepared = prepare(replace(plan, no_reference=True, tasks=tuple(specs.values())))
    except ServeEvalError:
        return False  # The run reports the error.
    return [p.fingerprint for p in prepared] == [dict(task.fingerprint) for task in living]


def keep_names(path: Path, suite: Suite) -> tuple[Suite, list[str]]:
    """Return a suite in which runs of the folder have their earlier names, and what was renamed.

    A second value on an axis changes the names that a matrix gives, and not what they ask.
    """
    if not SUITE.has_plan(path):
        return suite, []
    asked = {run.name: describe_asked(run.plan, address=True) for run in suite.runs}
    had = _list_answered(path)
    names: dict[str, str] = {}
    for old, content in had.items():
        alike = (n for n, one in asked.items() if n not in had and n not in names)
        if old not in asked and (found := next((n for n in alike if asked[n] == content), None)):
            names[found] = old
    runs = tuple(replace(run, name=names.get(run.name, run.name)) for run in suite.runs)
    notes = [f"{new} keeps its earlier name {old}" for new, old in names.items()]
    return replace(suite, runs=runs), notes


def find_earlier_tasks(path: Path, run: SuiteRun) -> Report | None:
    """Return the report of a run that has fewer tasks than its plan, asked as the plan asks."""
    try:
        report = read_report(path / SUITE_RUNS / run.name)
    except RunFolderError:
        return None
    found, wanted = (
        describe_asked(plan)
        for plan in (report.plan, replace(run.plan, model=run.plan.model or report.plan.model))
    )
    had, tasks = found.pop("tasks"), wanted.pop("tasks")
    fewer = had.keys() < tasks.keys() and all(tasks[name] == had[name] for name in had)
    return report if fewer and found == wanted else None


def list_new_tasks(path: Path, run: SuiteRun) -> list[str]:
    """Return the tasks of a run that its folder, which has answers to others, lacks."""
    place = path / SUITE_RUNS / run.name
    if not run_folder.is_bound(place):
        return []
    known = {task.name for task in run_folder.read_plan(place).tasks}
    return [task.name for task in run.plan.tasks if task.name not in known]


def _list_answered(path: Path) -> dict[str, Any]:
    """Return what the runs of a folder ask that have an answer, by their names.

    Of their tasks only those with an answer count.
    """
    found = {}
    for run in read_suite(path).runs:
        place = path / SUITE_RUNS / run.name
        if run_folder.is_bound(place):
            asked = found[run.name] = describe_asked(run.plan, address=True)
            asked["tasks"] = {
                name: options
                for name, options in asked["tasks"].items()
                if run_folder.is_bound_to(place, name)
            }
    return found


def _check_kept(path: Path, new: Suite) -> None:
    found = _list_answered(path)
    wanted = {run.name: describe_asked(run.plan, address=True) for run in new.runs}
    for name in found.keys() & wanted.keys():
        tasks = wanted[name]["tasks"]
        wanted[name]["tasks"] = {t: tasks[t] for t in tasks if t in found[name]["tasks"]}
    lines = [f"run {name} is not in this suite" for name in found if name not in wanted]
    lines += [
        line
        for name in found
        if name in wanted
        for line in differences(found[name], wanted[name], name)
    ]
    if lines:
        shown = "\n".join(
            f"  {line}" for line in [*lines[:20], *(["..."] if len(lines) > 20 else [])]
        )
        raise RunFolderError(
            f"{path} holds another suite:\n{shown}",
            hint=(
                "Keep the runs of the folder, and add runs or tasks: only these are asked. Or use"
                " another folder with -o: serve-eval runs export of both makes one table. --resume"
                " continues the suite of the folder."
            ),
        )


def describe_asked(plan: Plan, *, address: bool = False) -> Any:
    """Return what a plan asks, as JSON values, without speed, connection and data locations."""
    content = msgspec.json.decode(msgspec.json.encode(plan))
    kept = {"early_stop", "repeats", "repeats_of"}  # A suite does not resume a finished run.
    for field in {*FREE_FIELDS} - kept:
        del content[field]
    content["repeats_of"] = {
        name: times for name, times in content["repeats_of"].items() if not is_mutable(name)
    }
    # `_as_they_were` checks the mutable tasks.
    content["tasks"] = {
        name: options
        for name, options in run_folder.name_tasks(content["tasks"]).items()
        if not is_mutable(name)
    }
    if not address and plan.launcher.name == "external":
        content["launcher"]["options"].pop("base_url", None)
    return content
