"""Apply each change of named.toml to a copy of the checkout, and see its tests fail there.

The command is `make mutants-named`. `ARGS=WORDS` takes the changes with these words in their names.
Exits with 1 if the tests pass with a change, or do not pass without one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.drawing import copy_checkout

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".toml")
MOST_S = 300.0
"""Seconds that the tests of a change may take. A change that makes them hang is noticed, if they
pass without it in half of the time: otherwise the machine is busy."""
ALL_S = 3600.0
"""Seconds that the tests of all changes together may take without a change."""
LATE = "too late"
"""Said of tests that their limit ended."""


@dataclass(frozen=True, slots=True)
class Named:
    """A change: `new` in place of `old`, which `file` holds once; `tests` notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def listed():
    """Return the changes of the table."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["mutant"]
    return [Named(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def main(arguments):
    """Print each change with what noticed it, and return the exit code."""
    words = " ".join(arguments)
    chosen = [one for one in listed() if words in one.name]
    with tempfile.TemporaryDirectory() as place:
        copy = copy_checkout(ROOT, Path(place) / "checkout")
        tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
        passed, said = _passes(copy, tests, ALL_S)
        if not passed:
            print(f"without any change: {said}")
            return 1
        survived = [one.name for one in chosen if not is_noticed(copy, one)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} noticed")
    return 1 if survived else 0


def is_noticed(copy, one, passes=None):
    """Return True if the tests of a change do not pass with it; print what was found."""
    passes = passes or _passes
    file, began = copy / one.file, time.monotonic()
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(one.old, one.new, 1), encoding="utf-8")
    try:
        passed, said = passes(copy, one.tests, MOST_S)
    finally:
        file.write_text(source, encoding="utf-8")
    busy = said == LATE and not passes(copy, one.tests, MOST_S / 2)[0]
    found = "SURVIVED" if passed else f"UNDECIDED: {said} without the change too" if busy else said
    print(f"{one.name}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
    return not passed and not busy


def _passes(copy, tests, limit_s):
    """Return True if the fast ones of the tests pass, and the first that does not, or LATE."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    # Compiled code is identified by the second and the size of its source.
    alone = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, "--tb=line", "-m", "not slow", *tests],
            cwd=copy,
            env={**os.environ, **alone},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return False, LATE
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest cannot run {' '.join(tests)}:\n{done.stdout}{done.stderr}")
    failed = [x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, failed[0] if failed else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
