"""Refuse a package `launchers` that does not belong to serve-eval: others may use the name.

Another package wins if it is earlier on `sys.path`, or if its installation has overwritten our
files. The check does not run its code.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import serve_eval
from serve_eval.errors import PlanError

NAME = "launchers"
MARK = 'OWNER = "serve-eval"'
"""A line in the `__init__.py` of our package."""


def check_launchers() -> None:
    """Raise PlanError if Python finds another package of this name.

    The error has its path and the remedy.
    """
    place = Path(str(serve_eval.__file__)).parents[1]
    spec = _find()
    if spec is None:
        raise PlanError(
            f"{place / NAME}, a part of serve-eval, is missing", hint="Install serve-eval again."
        )
    if spec.origin is not None and Path(spec.origin).parent == place / NAME:
        if MARK in (_source(spec) or ""):
            return
        hint = (
            "It has overwritten files of serve-eval. Install serve-eval in a separate environment."
        )
    else:
        hint = (
            f"serve-eval needs {place / NAME}. Uninstall or rename the other package,"
            " remove its folder from PYTHONPATH, or install serve-eval in a separate"
            " environment."
        )
    path = spec.origin or ", ".join(spec.submodule_search_locations or ())
    raise PlanError(f"another package is called {NAME}: {path}{_distribution()}", hint=hint)


def _find() -> ModuleSpec | None:
    """Return the spec of the package that `import launchers` finds or has found."""
    loaded = sys.modules.get(NAME)
    return importlib.util.find_spec(NAME) if loaded is None else loaded.__spec__


def _source(spec: ModuleSpec) -> str | None:
    get = getattr(spec.loader, "get_source", None)  # loaders of archives have it too
    return None if get is None else get(NAME)


def _distribution() -> str:
    """Return the installed distributions with such a package, for the message."""
    from importlib import metadata

    others = {one for one in metadata.packages_distributions().get(NAME, ()) if one != "serve-eval"}
    return f" (of {', '.join(sorted(others))})" if others else ""
