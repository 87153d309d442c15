"""Load plans from folders that may be another user's: the user must confirm what they run or reach.

Folders of code must be named again each time, also for the user's own run folders: a signature does
not cover their current content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.reach import CONNECTION, list_reached
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.values import LAUNCHERS, VERDICTS
from serve_eval.schema import Plan
from serve_eval.storage import ownership, run_folder, sessions
from serve_eval.storage.answer_origins import read_traces

SHOWN = 2000
"""Maximum characters of a value in a refusal; the rest can be read in the folder."""


def to_read(
    run: Path,
    include_path: Sequence[str],
    *,
    writes: bool = True,
    replaced: Collection[str] = (),
) -> Plan:
    """Return the plan of a run folder for a command that only reads the folder.

    The plan is as in `adopt_code`, also for what is `replaced`, and without the hub unless this
    user allowed it. Raises WithheldCodeError as `adopt_code`, and RunFolderError for a folder
    without a plan. If the command `writes` scores, capsules and the like there, raises
    RunFolderError also for another user's folder with links out of it.
    """
    saved, own = run_folder.plan_and_owner(run)
    leading = (
        []
        if own or not writes
        else [(name, to) for name, to in _links(run) if not Path(to).is_relative_to(run.resolve())]
    )
    if leading:
        raise RunFolderError(
            f"{_plain(str(run))} was not created there by you and has links out of it:\n"
            + "\n".join(f"  {_plain(name)} leads to {show_safely(to)}" for name, to in leading),
            hint="If you trust it, copy it with the link targets (cp -rL), or delete the links.",
        )
    plan = adopt_code(saved, include_path, replaced)
    return replace(plan, allow_hub=plan.allow_hub and own)


def to_follow(
    run: Path, settings: Mapping[str, Any], *, trust_plan: bool, endpoint: bool = False
) -> Plan:
    """Return the plan of a run folder for a command that starts or asks what the plan says.

    The plan is as in `adopt_code` with the `include_path` of the settings. With `endpoint`, the
    endpoint noted by the last session is asked.

    Raises PlanError, which lists what the plan would run and reach, unless this user saved it
    there, the settings (as `plan.resolve` takes them) replace those values, or `trust_plan` is
    True.
    """
    saved, own = run_folder.plan_and_owner(run)
    replaced = {name for name in ("launcher", "verdict") if name in settings}
    replaced |= {"launcher"} if "base_url" in settings else set()
    plan = adopt_code(saved, settings.get("include_path", ()), replaced)
    if not trust_plan and not (own and (not endpoint or sessions.own_endpoint(run))):
        key = settings.get("api_key_env", plan.connection.api_key_env)
        chosen = tuple(
            task for task in plan.tasks if task.name in settings.get("tasks", (task.name,))
        )
        asked = replace(plan, tasks=chosen, connection=replace(plan.connection, api_key_env=key))
        check(run, {"": asked}, _list_given(plan, settings), _list_noted(run) if endpoint else ())
    return plan


def _list_given(plan: Plan, settings: Mapping[str, Any]) -> set[str]:
    """Return the fields of a plan that settings have values for, named as in `list_reached`."""
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
    """Return the symbolic links below a folder and their targets, where writes would land."""
    found = []
    for place, folders_below, files in os.walk(folder):
        for name in (*folders_below, *files):
            path = os.path.join(place, name)  # noqa: PTH118
            if os.path.islink(path):  # noqa: PTH114
                found.append((os.path.relpath(path, folder), os.path.realpath(path)))
    return sorted(found)


def _list_noted(run: Path) -> list[str]:
    """Return the addresses in the folder, apart from those in its plan."""
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
    """Raise PlanError if a plan in another user's folder runs or reaches anything.

    Fields that are `given` again are exempt. The keys of `plans` are prefixes for the lines of the
    message. `noted` are further addresses in the folder.
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
        else f" No key can be kept in {_state()}: choose another folder with XDG_STATE_HOME."
    )
    raise PlanError(
        f"the plan in {_plain(str(folder))} was not saved there by you: its signature is missing or"
        " not yours, for example after a copy or a manual edit. It would:\n"
        + "\n".join(dict.fromkeys(lines)),
        hint=(
            "If you trust all of this, pass --trust-plan. Otherwise set your own values with flags,"
            " or use your own plan."
        )
        + key,
    )


def _plain(text: str) -> str:
    """Return another user's name made safe as in `show_safely`, without quotes."""
    return show_safely(text)[1:-1]


def _state() -> str:
    try:
        return str(ownership.state_folder())
    except RuntimeError:
        return "the home folder, which is unknown"


def flag_of(plans: Sequence[Plan], *, own: bool) -> str:
    """Return the flag that a saved plan needs to be followed: none for this user's own folder."""
    return "" if own or not any(map(list_reached, plans)) else " --trust-plan"


def show_safely(value: object) -> str:
    """Return another user's value on one ASCII line, which cannot affect a terminal or mislead."""
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=True)
    return (
        text
        if len(text) <= SHOWN
        else f"{text[:SHOWN]}... ({len(text)} characters; the rest is in the folder)"
    )


def adopt_code(saved: Plan, include_path: Sequence[str], replaced: Collection[str] = ()) -> Plan:
    """Return the saved plan with the given folders of code in place of its own.

    The code of the plan's own folders does not run. Raises WithheldCodeError, with the folders that
    have it, for a task, launcher or verdict rule that is not found; a scorer that a case names
    raises it when the case is read. `replaced` is what the user gives instead of the saved one:
    "launcher", "verdict".
    """
    extensions.include(include_path)
    registry.withhold(path for path in saved.include_path if path not in include_path)
    wanted = [("serve_eval.tasks", task) for task in saved.tasks]
    wanted += [] if "launcher" in replaced else [(LAUNCHERS, saved.launcher)]
    wanted += [] if "verdict" in replaced else [(VERDICTS, saved.verdict)]
    unknown = [
        (folder, spec.name)
        for folder, spec in wanted
        if spec.name.partition(":")[0] not in registry.names(folder)
        # The lm-eval tasks in a folder are unknown until the folder is read.
        or (spec.name.startswith(f"{extensions.LM_EVAL}:") and not include_path)
    ]
    if unknown and saved.include_path:
        having = [path for one in unknown for path in registry.find_withheld(*one)]
        raise registry.explain_withheld(
            [f"{registry.kind_of(folder)} {name!r}" for folder, name in unknown],
            list(dict.fromkeys(having)) or saved.include_path,
        )
    return replace(saved, include_path=tuple(include_path))
