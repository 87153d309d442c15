"""Hold one comparison of our figures with those of another implementation."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


class Skipped(Exception):
    """Raised if the comparison lacks something.

    The message names it and says how to provide it.
    """


def require(*packages):
    """Raise Skipped if one of these packages is not installed."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise Skipped(
            f"not installed: {', '.join(missing)} (pip install -r tests/oracle/requirements.txt)"
        )


def checkout(variable, project, file):
    """Return the folder that an environment variable names.

    Raises Skipped if it does not hold the file.
    """
    folder = os.environ.get(variable, "")
    if not folder or not Path(folder, file).is_file():
        raise Skipped(
            f"{variable}={folder or 'DIR'} must name a checkout of {project} that has {file}"
        )
    return Path(folder).resolve()


@dataclass(slots=True, kw_only=True)
class Compared:
    """The result of a comparison: `count` compared figures or texts, and one line per difference.

    `what` names the figures and the other implementation. `notes` are printed below the line.
    """

    what: str
    count: int = 0
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name, ours, theirs):
        """Count a pair that must be equal, and keep it if it is not."""
        self.count += 1
        if ours != theirs:
            self.differences.append(f"{name}: ours {ours!r}, theirs {theirs!r}")

    def add_number(self, name, ours, theirs, tolerance=1e-9):
        """Count a pair of numbers; `tolerance` is relative above 1 and absolute below."""
        self.count += 1
        if not abs(ours - theirs) <= tolerance * max(1.0, abs(theirs)):
            self.differences.append(f"{name}: ours {ours!r}, theirs {theirs!r}")


SHARED = Path(__file__).resolve().parents[3] / "shared/data"


def shared(name):
    """Return a subfolder of the real data.

    Raises Skipped if it is missing.
    """
    if not (folder := SHARED / name).is_dir():
        raise Skipped(f"{folder} is not there")
    return folder


_ROOT = Path(__file__).resolve().parents[2]


def run(module, *arguments, **environ):
    """Run the module to its end.

    Raises RuntimeError with the last lines of its standard error if it fails.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module}: {done.stderr[-2000:]}")
