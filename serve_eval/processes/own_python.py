"""Start modules of serve-eval in processes of their own, to which no folder supplies code.

Without -P, `python -m` imports from the current folder first: a file `random.py` there would run in
place of Python's own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from serve_eval.processes.environment import keep_absolute
from serve_eval.processes.import_path import ROOT

CLEAN_FOLDER = "/"
"""The working folder of a process that needs none: nobody else can write there."""


def build_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module of serve-eval."""
    return [sys.executable, "-P", "-m", module, *words]


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return these variables with a PYTHONPATH by which only named folders supply code.

    Relative entries are left out. The folder of serve_eval is added if the command could not find
    it: in a checkout that is not installed.
    """
    places = keep_absolute(environ.get("PYTHONPATH", "")).split(os.pathsep)
    if ROOT not in map(sysconfig.get_path, ("purelib", "platlib")):
        places.append(ROOT)
    path = os.pathsep.join(dict.fromkeys(place for place in places if place))
    rest = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return {**rest, "PYTHONPATH": path} if path else rest


def list_places() -> list[str]:
    """Return the import path of this process for a child, with the standard library first.

    A user's scorer is found where this process found it. A file `random.py` next to it, or next to
    a test of pytest, does not replace Python's own in the child.
    """
    paths = sysconfig.get_paths()
    standard = {paths["stdlib"], paths["platstdlib"], sysconfig.get_config_var("DESTSHARED")}
    places = [place or str(Path.cwd()) for place in sys.path]
    return sorted(places, key=lambda place: place not in standard)
