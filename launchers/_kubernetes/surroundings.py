"""Find out what this process has for reaching pods, without importing it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from serve_eval.errors import PlanError, install_hint

PACKAGES = ("kr8s", "httpx_ws")
IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""Variable that the cluster sets in every container."""


def check_packages(what: str) -> None:
    """Raise PlanError if a package is missing that `what` needs."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise PlanError(f"{what} needs the package {package}", hint=install_hint("kubernetes"))


def needs_tunnels(environ: Mapping[str, str]) -> bool:
    """Return True if the addresses of a cluster cannot be reached from here."""
    return not environ.get(IN_A_POD)
