"""Refuse a package `launchers` that is not the one of serve-eval: the name is free for others to
take.

Another one wins where it stands earlier on `sys.path`, or where its installation has overwritten
files of ours. It is found out without running its code.
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
"""A line of the `__init__.py` of ours."""


def check_launchers() -> None:
    """Raises PlanError where Python finds another package of this name, with its path and what to
    do.
    """
    place = Path(str(serve_eval.__file__)).parents[1]
    spec = _find()
    if spec is None:
        raise PlanError(
            f"{place / NAME} is missing, a part of serve-eval", hint="Install serve-eval again."
        )
    if spec.origin is not None and Path(spec.origin).parent == place / NAME:
        if MARK in (_source(spec) or ""):
            return
        hint = (
            "It has overwritten files of serve-eval. Install serve-eval in an environment of its"
            " own."
        )
    else:
        hint = (
            f"serve-eval needs {place / NAME}. Uninstall or rename the other one, or take its"
            " folder off PYTHONPATH, or install serve-eval in an environment of its own."
        )
    path = spec.origin or ", ".join(spec.submodule_search_locations or ())
    raise PlanError(f"another package is called {NAME}: {path}{_distribution()}", hint=hint)


def _find() -> ModuleSpec | None:
    """What `import launchers` gives, or gave."""
    loaded = sys.modules.get(NAME)
    return importlib.util.find_spec(NAME) if loaded is None else loaded.__spec__


def _source(spec: ModuleSpec) -> str | None:
    get = getattr(spec.loader, "get_source", None)  # that of an archive has it too
    return None if get is None else get(NAME)


def _distribution() -> str:
    """The installed distributions that have such a package, to be named; reads the lists of all of
    them.
    """
    from importlib import metadata

    others = {one for one in metadata.packages_distributions().get(NAME, ()) if one != "serve-eval"}
    return f" (of {', '.join(sorted(others))})" if others else ""
