"""The plan of a folder that may be somebody else's: what it would run or reach has to be said anew
by the user.

Folders of code are named anew each time, in one's own folders too: no signature tells what lies in
them by now.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.reach import CONNECTION, list_reached
from serve_eval.evaluation.storage import ownership, run_folder, sessions
from serve_eval.evaluation.storage.records.traces import read_traces
from serve_eval.plugins import extensions, registry
from serve_eval.schema import Plan

SHOWN = 2000
"""Characters of a value that a refusal shows; a longer one is to be read in the folder."""


def to_read(run: Path, include_path: Sequence[str], *, writes: bool = True) -> Plan:
    """The plan of a run folder for a command that only reads it: as `trusted`, and without the hub,
    unless this user allowed that. Raises PlanError as `trusted`, and RunFolderError for a folder
    without a plan, and where the command `writes` scores, capsules and the like there, for one of
    somebody else with links out of it.
    """
    saved, own = run_folder.plan_and_owner(run)
    leading = (
        []
        if own or not writes
        else [(name, to) for name, to in _links(run) if not Path(to).is_relative_to(run.resolve())]
    )
    if leading:
        raise RunFolderError(
            f"{_plain(str(run))} was not made there by you, and has links out of it:\n"
            + "\n".join(f"  {_plain(name)} leads to {show_safely(to)}" for name, to in leading),
            hint="If you trust it, copy it with what they lead to (cp -rL), or delete them.",
        )
    plan = adopt_code(saved, include_path)
    return replace(plan, allow_hub=plan.allow_hub and own)


def to_follow(
    run: Path, settings: Mapping[str, Any], *, trust_plan: bool, endpoint: bool = False
) -> Plan:
    """The plan of a run folder for a command that starts or asks what it says: as `trusted` with
    the `include_path` of the settings. With `endpoint` the one that the last session noted is
    asked.

    Raises PlanError, which lists what the plan would run and reach, unless this user saved it
    there, the settings (as `plan.resolve` takes them) have values of the user's own in their place,
    or `trust_plan` says that it is trusted.
    """
    saved, own = run_folder.plan_and_owner(run)
    plan = adopt_code(saved, settings.get("include_path", ()))
    if not trust_plan and not (own and (not endpoint or sessions.own_endpoint(run))):
        key = settings.get("api_key_env", plan.connection.api_key_env)
        chosen = tuple(
            task for task in plan.tasks if task.name in settings.get("tasks", (task.name,))
        )
        asked = replace(plan, tasks=chosen, connection=replace(plan.connection, api_key_env=key))
        check(run, {"": asked}, _list_given(plan, settings), _list_noted(run) if endpoint else ())
    return plan


def _list_given(plan: Plan, settings: Mapping[str, Any]) -> set[str]:
    """The fields of a plan that settings have values for, as `reached` names them."""
    found = {f"connection.{name}" for name in CONNECTION if name in settings}
    found |= {name for name in ("launcher", "allow_hub") if name in settings}
    found |= {text.partition("=")[0] for text in settings.get("set", ())}
    if "base_url" in settings:
        found.add("launcher.base_url")
    other = (
        settings.get("launcher", "external" if "base_url" in settings else plan.launcher.name)
        != plan.launcher.name
    )
    return found | (
        {"launcher", *(f"launcher.{name}" for name in plan.launcher.options)} if other else set()
    )


def _links(folder: Path) -> list[tuple[str, str]]:
    """The symbolic links below a folder with where they lead: what is written there would land
    elsewhere.
    """
    found = []
    for place, folders_below, files in os.walk(folder):
        for name in (*folders_below, *files):
            path = os.path.join(place, name)  # noqa: PTH118
            if os.path.islink(path):  # noqa: PTH114
                found.append((os.path.relpath(path, folder), os.path.realpath(path)))
    return sorted(found)


def _list_noted(run: Path) -> list[str]:
    """The addresses that the folder itself names beside its plan."""
    endpoints = [session.endpoint for session in sessions.read_sessions(run)[-1:]]
    found: list[str | None] = [one.base_url for one in endpoints]
    found += [url for one in endpoints for url in (one.info.servers or {}).values()]
    lines = [
        one
        for of_task in (read_traces(run) or {}).values()
        for ones in of_task.values()
        for one in ones
    ]
    found += [url for one in lines for url in (one.context, one.generation)]
    return sorted({str(url) for url in found if url})


def check(
    folder: Path, plans: Mapping[str, Plan], given: Collection[str] = (), noted: Sequence[str] = ()
) -> None:
    """Raises PlanError where a plan of a folder of somebody else runs or reaches anything, but for
    the fields that are `given` anew. Plans are there by what their lines begin with; `noted` are
    addresses that the folder has besides.
    """
    lines = [
        f"  {_plain(name + one.field)}: {_plain(one.does)} {show_safely(one.value)}"
        for name, plan in plans.items()
        for one in list_reached(plan)
        if one.field not in given
    ]
    lines += [f"  environment.json: send prompts of the run to {show_safely(url)}" for url in noted]
    lines += [
        f"  {_plain(name)}: write through this link to {show_safely(to)}"
        for name, to in _links(folder)
    ]
    if not lines:
        return
    key = (
        ""
        if ownership.has_key()
        else f" No key can be kept in {_state()}: XDG_STATE_HOME names another folder."
    )
    raise PlanError(
        f"the plan in {_plain(str(folder))} was not saved there by you: its signature is missing or"
        " not yours, as after a copy or a change by hand. It would:\n"
        + "\n".join(dict.fromkeys(lines)),
        hint=(
            "If you trust all of this: --trust-plan. Else give values of your own with flags, or a"
            " plan of your own."
        )
        + key,
    )


def _plain(text: str) -> str:
    """Names of somebody else's in the same way, without quotes."""
    return show_safely(text)[1:-1]


def _state() -> str:
    try:
        return str(ownership.state_folder())
    except RuntimeError:
        return "the home, which nothing names"


def flag_of(plans: Sequence[Plan], *, own: bool) -> str:
    """The flag without which a saved plan does not go on: none for a folder that is this user's
    own.
    """
    return "" if own or not any(map(list_reached, plans)) else " --trust-plan"


def show_safely(value: object) -> str:
    """A value of somebody else's on one line of ASCII: nothing in it acts on a terminal or reads as
    something else.
    """
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=True)
    return (
        text
        if len(text) <= SHOWN
        else f"{text[:SHOWN]}... ({len(text)} characters, to be read in the folder)"
    )


def adopt_code(saved: Plan, include_path: Sequence[str]) -> Plan:
    """The saved plan with the folders of code that are named now in the place of its own, which are
    not looked into.

    Raises PlanError for a task, launcher or verdict rule that is not found then, naming the folders
    that the plan has.
    """
    extensions.include(include_path)
    wanted = [("serve_eval.tasks", task) for task in saved.tasks]
    wanted += [("launchers", saved.launcher), ("serve_eval.verdicts.rules", saved.verdict)]
    unknown = [
        f"{registry.kind_of(folder)} {spec.name!r}"
        for folder, spec in wanted
        if spec.name.partition(":")[0] not in registry.names(folder)
        # Which of lm-eval's tasks a folder has is not known without looking into it.
        or (spec.name.startswith(f"{extensions.LM_EVAL}:") and not include_path)
    ]
    if unknown and saved.include_path:
        flags = " ".join(f"--include-path {shlex.quote(path)}" for path in saved.include_path)
        raise PlanError(
            f"the saved plan takes its {', '.join(unknown)} from {', '.join(saved.include_path)},"
            " whose code runs only when it is named anew",
            hint=f"If you trust it: {flags}",
        )
    return replace(saved, include_path=tuple(include_path))
