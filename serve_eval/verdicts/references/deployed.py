"""Say how a deployment was launched, so that a reference of a damaged server is visible."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from serve_eval.schema import Plan, Reference
from serve_eval.verdicts.references.reference_file import spec_text

LAUNCHER, EXTERNAL = "launcher", "external"
LONGEST = 60
"""Characters of an attribute at most; the middle of a longer one is left out."""


def list_launched(plan: Plan) -> dict[str, str]:
    """Return the name of the launcher, and each of its options as launcher.NAME.

    The address of an endpoint that already runs is left out: nothing launched it.
    """
    options = dict(plan.launcher.options)
    if plan.launcher.name == EXTERNAL:
        options.pop("base_url", None)
    named = {f"{LAUNCHER}.{name}": write_value(value) for name, value in sorted(options.items())}
    return {LAUNCHER: plan.launcher.name, **named}


def describe_reference(found: Reference) -> str:
    """Return the name of a reference in tables: its model, specification and deployment."""
    taken = describe_taken(found)
    name = f"{found.model}, {spec_text(found.spec)}"
    return f"{name}, taken at {taken}" if taken else name


def describe_taken(found: Reference) -> str:
    """Return the deployments that a reference was taken at: "launcher simulated, damage 0.5".

    It is empty if the reference was not registered from runs, or by an older version.
    """
    return " and ".join(map(describe_launched, _list_deployments(found)))


def describe_difference(found: Reference, plan: Plan) -> str:
    """Return in which launcher options a reference differs from a plan; empty if in none.

    An address differs for a good reason, and so does a version, which is compared elsewhere.
    Nothing is known of how a server was launched that already ran.
    """
    now = list_launched(plan)
    for taken in _list_deployments(found):
        had = {name: value for name, value in taken.items() if name.startswith(LAUNCHER)}
        if had not in (now, {LAUNCHER: EXTERNAL}):
            return (
                f"the reference was taken at {describe_launched(had)}; this run is at"
                f" {describe_launched(now)}"
            )
    return ""


def describe_launched(deployment: Mapping[str, str]) -> str:
    """Return a deployment on one line: "launcher simulated, damage 0.5".

    One that already ran is named by its address.
    """
    parts = [
        f"{name.removeprefix(f'{LAUNCHER}.')} {shorten(value)}"
        for name, value in deployment.items()
        if (name, value) != (LAUNCHER, EXTERNAL) or len(deployment) == 1
    ]
    return ", ".join(parts)


def _list_deployments(found: Reference) -> tuple[Mapping[str, str], ...]:
    return () if found.runs is None else found.runs.deployments


def write_value(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted", enc_hook=str).decode()


def shorten(text: str) -> str:
    """Return an attribute without its middle if it is long."""
    half = (LONGEST - 3) // 2
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3 - half]}...{text[-half:]}"
