"""Check the runs of a suite before anything starts, and group them by server."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.build_report import check_pairs
from serve_eval.evaluation.endpoint.launch import check_launcher
from serve_eval.evaluation.preflight import check_margins
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.rerun import Rerun
from serve_eval.evaluation.run_session import ignore
from serve_eval.evaluation.shared_server import server_key
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Connection, Plan, Scalar, Spec, Suite, SuiteRun
from serve_eval.workflows.suite.folder import check_folder, keep_names, read_kept_report

NAMED = 3
"""Number of runs that a message names."""
_ANY = Spec(name="external")


class RefusedRun(NamedTuple):
    """A run whose plan is wrong, with its problems, each with its place in the file."""

    name: str
    attributes: Mapping[str, Scalar]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
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
def check_suite(
    suite: Suite, out_dir: Path, rerun: Rerun, notify: Callable[[str], None] = ignore
) -> None:
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
