"""Transfer of the KV cache from a context server to a generation server: the library, and the ways
of UCX.

Every version takes the name of the library from the config. What DEFAULT means they decide
themselves (NIXL on main, UCX before), and a variable that names a library counts for DEFAULT only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from launchers._machine import smi
from launchers._process import environment
from serve_eval.schema import KvTransfer

BACKEND = "UCX"
"""The default of a plan: NVIDIA's own accuracy test of disaggregated serving runs with it."""
BY_NIXL = ("DEFAULT", "NIXL")
LINK = re.compile(r"Link \d+:\s+[\d.]+\s+GB/s")
TLS = "UCX_TLS"
OWN = "as it was inherited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Facts on a machine. `nvlink`: whether its GPUs have links (None: not known). `own`: variables
    that the servers get from the user, which the launcher leaves alone.
    """

    nvlink: bool | None = None
    own: frozenset[str] = frozenset()


def nvlink() -> bool | None:
    """Return true if nvidia-smi shows a link between GPUs; None where it cannot be asked."""
    if (answer := smi.answer("nvlink", "-s")) is None:
        return None
    code, lines = answer
    return code == 0 and any(map(LINK.search, lines))


def list_inherited(
    names: Collection[str], environ: Mapping[str, str] = os.environ
) -> frozenset[str]:
    """Return the variables of UCX that a server inherits and that the launcher leaves alone.

    UCX_TLS is among them only where it is named: many clusters export one, such as tcp, that cannot
    move a KV cache.
    """
    found = {name for name in environment.inherit(environ, names) if name.startswith("UCX_")}
    if not any(fnmatchcase(TLS, name) for name in (*names, *environment.list_named(environ))):
        found.discard(TLS)
    return frozenset(found)


def variables(backend: str, ways: Ways | None) -> dict[str, str]:
    """Return variables for the transfer on one machine, as in NVIDIA's own tests, without those of
    the user.
    """
    if ways is None:
        return {}
    found = {TLS: "^cuda_ipc" if ways.nvlink is False else "^ib"}
    if backend.upper() in BY_NIXL:
        found["UCX_MM_ERROR_HANDLING"] = "y"
    return {name: value for name, value in found.items() if name not in ways.own}


def summary(backend: str, ways: Ways | None, env: Mapping[str, str | None]) -> KvTransfer:
    """Return what the report has: the library, whether the GPUs have links, and UCX_TLS. `env` are
    the variables of the plan.
    """
    inherited = OWN if ways is not None and TLS in ways.own else None
    ours = {TLS: inherited, **variables(backend, ways)}
    return KvTransfer(
        backend=backend,
        nvlink=ways.nvlink if ways is not None else None,
        ucx_tls={**ours, **env}[TLS],
    )


def describe_transfer(summary: KvTransfer) -> str:
    """The same in a line."""
    backend = summary.backend
    library = "DEFAULT, as this version reads it" if backend.upper() == "DEFAULT" else backend
    links = {True: "NVLink found", False: "no NVLink", None: "NVLink not known"}[summary.nvlink]
    tls = summary.ucx_tls
    set_to = f"{TLS} not set" if tls is None else f"{TLS} {tls}" if tls == OWN else f"{TLS}={tls}"
    return f"transfer of the KV cache: {library}; {links}; {set_to}"
