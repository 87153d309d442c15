"""Resolve the plan of `serve-eval run` and its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from serve_eval.cli._options import settings_of
from serve_eval.cli._sides import inherit_variables
from serve_eval.errors import PlanError

FORM_OF_PLAN = "Its first lines are, for example, model: my-org/my-model and tasks: [gsm8k]."

if TYPE_CHECKING:
    from serve_eval.plan.options import ProtocolOptions
    from serve_eval.plan.resolve import Resolved
    from serve_eval.schema import Plan


def read_settings(
    sections: tuple[Any, ...], protocol: ProtocolOptions, *, flags: set[str], resuming: bool
) -> dict[str, Any]:
    """Return the settings without those that others overrule.

    A resumed run follows its saved plan, so variables are ignored. A flag for the address overrules
    a variable for the launcher, and the reverse.
    """
    settings = settings_of(*sections, only=flags if resuming else None)
    for name, other in (("base_url", "launcher"), ("launcher", "base_url")):
        if name in flags and other not in flags and settings.get("launcher") != "external":
            settings.pop(other, None)
    if choices := settings_of(protocol, only=flags if resuming else None):
        settings["choices"] = {**settings.get("choices", {}), **choices}
    return settings


def refuse_address(plan: Path) -> None:
    """Raise PlanError for an address in the place of a plan, and name its flag."""
    text = str(plan).replace(":/", "://", 1)
    if not plan.exists() and re.fullmatch(r"https?://.+|[\w.-]+:\d+(/.*)?", text):
        raise PlanError(
            f"{text}: is not a plan file", hint=f"Name an endpoint by --base-url {text}"
        )


def resolve_plan(
    plan: Path | None,
    resume: Path | None,
    settings: dict[str, Any],
    *,
    follow: bool,
    trust_plan: bool,
) -> Resolved:
    """Return the plan of a file, a run folder or flags alone.

    The plan of a folder is only read, unless `follow` is set.
    """
    from dataclasses import replace

    from serve_eval.evaluation.trust import to_follow, to_read
    from serve_eval.plan.plan_file import to_file
    from serve_eval.plan.resolve import resolve
    from serve_eval.plan.settings import read_defaults
    from serve_eval.yaml_source import read

    if resume is not None and (plan is not None or "output_dir" in settings):
        raise PlanError(
            "--resume uses the plan and folder of the run: do not give a plan file or -o"
        )
    if resume is None and trust_plan:
        raise PlanError("--trust-plan needs --resume: a plan file that you give is always trusted")
    if resume is not None:
        included = settings.get("include_path", ())
        saved = (
            to_follow(resume, settings, trust_plan=trust_plan)
            if follow
            else to_read(resume, included, writes=False)
        )
        resolved = resolve(to_file(saved), settings, inherit_variables())
        return replace(
            resolved, plan=replace(resolved.plan, integration_test=saved.integration_test)
        )
    if plan is None:
        return resolve(read_defaults().put_below({}), settings, os.environ)
    document = read(plan, PlanError)
    if not isinstance(document.value, dict):
        raise PlanError(
            f"{plan}: expected a mapping of keys such as model and tasks", hint=FORM_OF_PLAN
        )
    return resolve(
        read_defaults().put_below(document.value),
        settings,
        os.environ,
        lambda *path: f"{plan}:{document.line(*path)}: ",
    )


def take_auto_limit(settings: dict[str, Any], *, resuming: bool) -> bool:
    """Return True if an earlier run decides max_tokens, and remove the word from the settings.

    Raises PlanError for a run that is resumed.
    """

    if settings.get("choices", {}).get("max_tokens") != "auto":
        return False
    if resuming:
        raise PlanError(
            "--max-tokens auto: a limit never changes within a run",
            hint="Leave it out: the run keeps its limit.",
        )
    del settings["choices"]["max_tokens"]
    return True


def describe_origins(
    plan: Path | None, settings: dict[str, Any], flags: set[str], values: Sequence[str]
) -> list[str]:
    """Return a line for each source of the settings of a run, with the keys that it decides.

    `values` are those of --set, from the flag or from SERVE_EVAL_SET.
    """
    from serve_eval.plan.settings import list_keys, list_origins, read_defaults
    from serve_eval.yaml_source import read

    set_keys = list_keys(values) if "settings" in flags else ()
    content = {} if plan is None else read(plan, PlanError).value
    found = list_origins(flags, settings, content, read_defaults(), set_keys=set_keys)
    names = {"plan": str(plan)}
    return [f"from {names.get(place, place)}: {', '.join(keys)}" for place, keys in found]


def name_model(plan: Plan) -> Plan:
    """Return the plan with the model that its endpoint lists, if it names none.

    The default folder is named after the model.
    """
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._streams import say
    from serve_eval.evaluation.launch import with_model
    from serve_eval.verdicts.exit_code import INTERRUPTED

    if plan.model is not None:
        return plan
    try:
        return run_async(with_model(plan, os.environ, notify=say))
    except Interrupted:
        say("Interrupted; nothing was saved")
        raise typer.Exit(INTERRUPTED) from None


def continue_unfinished(plan: Plan) -> Path | None:
    """Return the folder of an unfinished run of the same plan, and say that it is continued."""
    from serve_eval.cli._async import find_continued
    from serve_eval.evaluation.earlier_run import find_unfinished_run

    return find_continued(find_unfinished_run(plan, os.environ))


def new_folder(plan: Plan) -> Path:
    from serve_eval.storage.command_folder import claim_default_folder

    name = "".join(
        c if c.isalnum() or c in "-._" else "-"
        for c in (plan.model or "endpoint").rsplit("/", 1)[-1]
    )[:60]
    return claim_default_folder(name)
