"""Put the rehearsal of a launcher in its place (--rehearse)."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.errors import PlanError
from serve_eval.schema import REHEARSAL, Plan, Spec

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
