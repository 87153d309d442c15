"""Choose the environment that MPI and the transfer of the KV cache need.

It has a library and, for UCX, transports. Every version takes the name of the library from the
config. Versions decide what DEFAULT means (NIXL on main, UCX before), and a variable that names a
library counts only for DEFAULT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from serve_eval.launchers._machine import local_gpus
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.schema import KvTransfer

BACKEND = "UCX"
"""The default of a plan: NVIDIA's own accuracy test of disaggregated serving uses it."""
BY_NIXL = ("DEFAULT", "NIXL")
LINK = re.compile(r"Link \d+:\s+[\d.]+\s+GB/s")
TLS = "UCX_TLS"
OWN = "as it was inherited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Facts about a machine.

    `nvlink`: True if its GPUs have links (None: not known). `own`: variables that the servers get
    from the user, which the launcher does not change.
    """

    nvlink: bool | None = None
    own: frozenset[str] = frozenset()


def nvlink() -> bool | None:
    """Return True if nvidia-smi shows a link between GPUs; None if it does not work."""
    if (answer := local_gpus.answer("nvlink", "-s")) is None:
        return None
    code, lines = answer
    return code == 0 and any(map(LINK.search, lines))


def list_inherited(
    names: Collection[str], environ: Mapping[str, str] = os.environ
) -> frozenset[str]:
    """Return the variables of UCX that a server inherits and that the launcher does not change.

    UCX_TLS is among them only if it is named: many clusters export one, such as tcp, that cannot
    move a KV cache.
    """
    found = {name for name in environment.inherit(environ, names) if name.startswith("UCX_")}
    if not any(fnmatchcase(TLS, name) for name in (*names, *environment.list_named(environ))):
        found.discard(TLS)
    return frozenset(found)


def variables(backend: str, ways: Ways | None) -> dict[str, str]:
    """Return variables for the transfer on one machine, without those of the user.

    They follow NVIDIA's own tests.
    """
    if ways is None:
        return {}
    found = {TLS: "^cuda_ipc" if ways.nvlink is False else "^ib"}
    if backend.upper() in BY_NIXL:
        found["UCX_MM_ERROR_HANDLING"] = "y"
    return {name: value for name, value in found.items() if name not in ways.own}


def summary(backend: str, ways: Ways | None, env: Mapping[str, str | None]) -> KvTransfer:
    """Return the facts for the report: the library, links between the GPUs, and UCX_TLS.

    `env` are the variables of the plan.
    """
    inherited = OWN if ways is not None and TLS in ways.own else None
    ours = {TLS: inherited, **variables(backend, ways)}
    return KvTransfer(
        backend=backend,
        nvlink=ways.nvlink if ways is not None else None,
        ucx_tls={**ours, **env}[TLS],
    )


def describe_transfer(summary: KvTransfer) -> str:
    """Return this summary as one line."""
    backend = summary.backend
    library = "DEFAULT, as this version reads it" if backend.upper() == "DEFAULT" else backend
    links = {True: "NVLink found", False: "no NVLink", None: "NVLink not known"}[summary.nvlink]
    tls = summary.ucx_tls
    set_to = f"{TLS} not set" if tls is None else f"{TLS} {tls}" if tls == OWN else f"{TLS}={tls}"
    return f"transfer of the KV cache: {library}; {links}; {set_to}"


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
