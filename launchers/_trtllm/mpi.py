"""The environment that MPI needs in a server that starts its own ranks, and messages about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm.command_line import Server

AS_ROOT = {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Without both, Open MPI 5 starts no rank for root, and the server never stops waiting."""
ROOT = ("", "root", "0")
SETTINGS = ("OMPI_MCA_", "PMIX_MCA_", "UCX_")


def for_ranks() -> dict[str, str]:
    """Return the variables for a server on this machine or in a step, which runs as our user."""
    return AS_ROOT if we_are_root() else {}


def we_are_root() -> bool:
    return os.geteuid() == 0


def for_container(user: str | None) -> dict[str, str]:
    """Return the variables for a server in a container, which runs as root by default."""
    return AS_ROOT if (user or "").partition(":")[0] in ROOT else {}


def describe_ranks(servers: Sequence[Server], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return messages about ranks that run as root and settings that servers do not get."""
    name = next(iter(AS_ROOT))
    lines = []
    if any(f"{name}=1" in server.line() for server in servers):
        lines.append(
            f"{name}=1 and {name}_CONFIRM=1 are set: without them Open MPI 5 starts no"
            " ranks for root"
        )
    for setting, value in sorted(environment.inherit(environ).items()):
        if setting.startswith(SETTINGS):
            lines += _not_passed_on(servers, setting, value)
    return lines


def _not_passed_on(servers: Sequence[Server], setting: str, value: str) -> list[str]:
    begin, replaced, outside = f"{setting}=", [], []
    for server in servers:
        if set_anew := [word for word in server.line() if word.startswith(begin)]:
            replaced += [] if set_anew[-1] == begin + value else [server.name]
        elif server.image is not None and setting not in server.pass_env:
            outside.append(server.name)
    why = {
        "the launcher or the plan sets it there": replaced,
        "to pass it into a container, name it in its pass_env": outside,
    }
    return [
        f"not passed on to {_few(names)}: your {setting}; {reason}"
        for reason, names in why.items()
        if names
    ]


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
