"""Refuse variables of the user under which launched servers would answer without meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping

from serve_eval.errors import PlanError
from serve_eval.launchers._process import environment
from serve_eval.protocol.meaningless import SWITCHES, MeaninglessSetting, judge_setting
from serve_eval.schema import Plan

_NOT_INHERITED = ("external", "kubernetes", "simulated", "embedded", "container")
"""Launchers whose servers inherit none of our variables."""


def check_inherited(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Raise PlanError for variables that make answers meaningless and that servers inherit."""
    if not plan.allow_meaningless and (found := list_inherited(plan, environ)):
        names = ", ".join(one.name for one in found)
        raise PlanError(
            [str(one) for one in found],
            hint=f"Servers inherit your variables: unset {names}, or allow them with"
            " --set allow_meaningless=true.",
        )


def list_inherited(plan: Plan, environ: Mapping[str, str]) -> list[MeaninglessSetting]:
    """Return the settings in variables that servers of the plan would inherit from the user.

    A variable that the plan itself sets or removes is not inherited.
    """
    if plan.launcher.name in _NOT_INHERITED:
        return []
    options = str(plan.launcher.options)
    named = {name.upper() for name in SWITCHES} & environ.keys()
    return [
        MeaninglessSetting("your environment", name, environ[name], effect)
        for name in sorted(named & environment.inherit(environ).keys())
        if (effect := judge_setting(name, environ[name])) and f"'{name}':" not in options
    ]
