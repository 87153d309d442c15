"""Routers of an orchestrator: their types, and settings with which a version always fails. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.plugins.registry import find_closest

TYPES = (
    "round_robin",
    "load_balancing",
    "kv_cache_aware",
    "conversation",
    "centralized_kv_cache_aware",
    "remote_http",
)
"""Types of all versions together: all versions that were read have the first three, those of 2026
also `conversation`, and one of main all. An orchestrator that does not know a type ends immediately
and names those that it has."""
SINCE_MAIN = frozenset({"--schedule_style", "--telemetry", "--no-telemetry"})
"""Options of `trtllm-serve disaggregated` that the 1.2 line does not have."""


def section(side: str, router: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return `router` for the orchestrator's file. Raise PlanError without a known type."""
    found = dict(router) if isinstance(router, Mapping) else {"type": router}
    if "type" not in found:
        raise PlanError(
            f"launcher.{side}.router: a type is required, such as round_robin or load_balancing"
        )
    if str(found["type"]).lower() not in TYPES:
        raise PlanError(
            f"launcher.{side}.router: unknown type {found['type']!r}.{_nearest(str(found['type']))}"
        )
    return found


def _nearest(name: str) -> str:
    close = find_closest(name.lower(), TYPES)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(TYPES)}."


def problems(server: Server, flags: Collection[str]) -> list[str]:
    """Return problems with the routers of an orchestrator whose version has these options."""
    import yaml

    if server.probe[-1] != "disaggregated" or SINCE_MAIN & set(flags):
        return []
    found = []
    for text in server.files.values():
        content = yaml.safe_load(text)
        for side in ("context_servers", "generation_servers"):
            router = (content.get(side) or {}).get("router") or {}
            if str(router.get("type", "")).lower() == "load_balancing" and router.get("use_tokens"):
                found.append(
                    f"launcher.{side}.router: with use_tokens: true this version answers 500 to"
                    " every request: leave use_tokens out"
                )
    return found
