"""Watch from where the processes of a test take code, and hide the checkout from them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

WATCHED = Path(__file__).with_name("watched")
_HIDE = 'mount -t tmpfs -o mode=000 none "$0" && exec "$@"'
_WAYS = {
    "a mount namespace of root": ("unshare", "--mount"),
    "a mount namespace of a user": ("unshare", "--user", "--map-root-user", "--mount"),
}
NOT_HIDDEN = "nothing: mount namespaces are refused here, so files that are opened are only listed"


@dataclass(frozen=True, slots=True)
class Hiding:
    """The words before a command that hide the checkout from it, and what they use."""

    words: tuple[str, ...]
    by: str


def hide(checkout):
    """Return a way to run commands that see an empty folder in place of the checkout.

    On a machine that refuses both namespaces the words are empty.
    """
    for by, namespace in _WAYS.items():
        words = (*namespace, "sh", "-c", _HIDE, str(checkout))
        try:
            seen = subprocess.run(
                [*words, "ls", "-A", str(checkout)], capture_output=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if seen.returncode == 0 and not seen.stdout:
            return Hiding(words, by)
    return Hiding((), NOT_HIDDEN)


def build_variables(log):
    """Return the variables by which a process and its children write to the log."""
    return {"PYTHONPATH": str(log.parent / "watched")}


def copy_watch(folder, checkout):
    """Copy the module that watches out of the checkout, and return the file of the log."""
    target = folder / "watched"
    target.mkdir()
    (target / "sitecustomize.py").write_bytes((WATCHED / "sitecustomize.py").read_bytes())
    log = folder / "watched.log"
    (target / "paths").write_text(f"{log}\n{checkout}\n")
    return log


def find_foreign(log, environment):
    """Return the number of watched processes, and what came from elsewhere than the environment."""
    lines = log.read_text().splitlines() if log.exists() else []
    foreign = {line for line in lines if line != "begun" and not _is_installed(line, environment)}
    return lines.count("begun"), sorted(foreign)


def _is_installed(line, environment):
    kind, _, rest = line.partition(" ")
    file = rest.partition(" ")[2] if kind == "module" else rest
    return kind == "module" and os.path.realpath(file).startswith(f"{environment}{os.sep}")


def run_watched(
    words,
    *,
    hiding,
    folder,
    variables,
    limit_s=600,
):
    """Run a command that does not see the checkout, and return what it printed."""
    return subprocess.run(
        [*hiding.words, *map(str, words)],
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
