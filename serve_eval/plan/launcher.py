"""Resolve the launcher of a plan, or put the rehearsal of the launcher in its place.

`base_url` stands for the launcher `external` with that address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plan.plan_file import LAUNCHERS, Problems, spec_of
from serve_eval.schema import REHEARSAL, Plan, Spec
from serve_eval.schema.base_url import normalise_base_url

DEFAULT_BASE_URL = "http://localhost:8000/v1"

NO_ADDRESS = "the plan names no endpoint: add base_url: host:port, or a launcher that starts one"


def launcher_of(
    file: Mapping[str, Any],
    settings: Mapping[str, Any],
    values: Mapping[str, Any],
    environ: Mapping[str, str],
    problems: Problems,
) -> Spec:
    """Return the launcher from the settings, the file or the environment, in this order."""
    chosen = settings.get("launcher")
    if chosen is None and "base_url" not in settings and file.get("launcher") is not None:
        spec = spec_of(file["launcher"], LAUNCHERS, ("launcher",), problems)
        clash = "base_url" in file
    elif chosen is not None:
        in_file = spec_of(file.get("launcher") or chosen, LAUNCHERS, ("launcher",), problems)
        spec = in_file if in_file.name == chosen else Spec(name=chosen)
        clash = "base_url" in settings
    else:
        in_file = spec_of(file.get("launcher") or "external", LAUNCHERS, ("launcher",), problems)
        spec, clash = in_file if in_file.name == "external" else Spec(name="external"), False
    if spec.name != "external":
        if clash:
            problems.add(
                ("base_url",),
                f"cannot be used with the launcher {spec.name!r}, which starts its own endpoint",
            )
        return spec
    base_url = settings.get("base_url") or environ.get("OPENAI_BASE_URL") or values.get("base_url")
    base_url = base_url or spec.options.get("base_url")
    return Spec(name="external", options={**spec.options, "base_url": base_url})


def with_normal_address(launcher: Spec, problems: Problems, *, needs_address: bool = False) -> Spec:
    """Return the launcher with its base URL in the normal form, which is saved and shown.

    Without one it is DEFAULT_BASE_URL; with `needs_address`, that is a problem.
    """
    if launcher.name != "external":
        return launcher
    given = launcher.options.get("base_url")
    if needs_address and not given:
        problems.add(("base_url",), NO_ADDRESS)
    try:
        base_url = normalise_base_url(str(given or DEFAULT_BASE_URL))
    except PlanError as error:
        problems.found += error.problems
        base_url = DEFAULT_BASE_URL
    return Spec(name="external", options={**launcher.options, "base_url": base_url})


REHEARSABLE = ("trtllm", "trtllm_disaggregated", "container", "slurm")
"""Launchers whose servers the stand-in can replace."""
WHY_NOT = {
    "external": "the plan starts no server, so there is nothing to rehearse",
    "kubernetes": "its servers run in the cluster already",
    "simulated": "it starts a server without a model already",
    "embedded": "it needs no GPU",
}


def rehearse_plan(plan: Plan) -> Plan:
    """Return the plan with the rehearsal of its launcher. Raise PlanError as `rehearse` does.

    It judges nothing, so that no reference is needed.
    """
    return replace(plan, launcher=rehearse(plan.launcher), allow_missing_reference=True)


def rehearse(launcher: Spec) -> Spec:
    """Return the launcher that rehearses this one.

    Raises PlanError, which names the launcher, if there is no stand-in for its servers.
    """
    if launcher.name == REHEARSAL:
        return launcher
    if launcher.name not in REHEARSABLE:
        why = WHY_NOT.get(launcher.name, "there is a stand-in for trtllm-serve only")
        raise PlanError(
            f"--rehearse: the launcher {launcher.name} cannot be rehearsed: {why}",
            hint=f"Launchers that can be rehearsed: {', '.join(REHEARSABLE)}.",
        )
    return Spec(name=REHEARSAL, options={"of": launcher.name, "options": dict(launcher.options)})
