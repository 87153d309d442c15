"""Try the wheel as a user has it: make test-wheel.

For each Python: an empty environment outside this checkout, the wheel, and the documented commands
in a folder of hostile modules. The checkout is hidden from all of them. Prints a table of steps
with seconds; the exit code is 1 if a step failed or if no Python was found. Of the arguments, the
path of a wheel is tried in place of one that is built here; the others are versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.wheel.steps import Environment, Failed, Steps, build
from tests.wheel.watching import copy_watch, hide

ROOT = Path(__file__).resolve().parents[2]
AHEAD = ("3.14",)
"""Versions that are tried where they are installed, though no classifier names them."""
THIS = "this"
"""The word for the Python of this process."""


def main(asked):
    """Try the wheel on each of these versions, and return the exit code."""
    given = [Path(one).resolve() for one in asked if one.endswith(".whl")]
    asked = [one for one in asked if not one.endswith(".whl")]
    hiding = hide(ROOT)
    print(f"the checkout is hidden by {hiding.by}", flush=True)
    results = {}
    with tempfile.TemporaryDirectory(prefix="test-wheel-") as name:
        folder = Path(name).resolve()
        built = list(given)

        def build_once():
            if given:
                return f"{given[0].name} was given"
            built.append(build(ROOT, folder / "dist"))
            return f"{built[0].stat().st_size >> 20} MB; the wheel of the sdist is the same"

        if not _step("build wheel and sdist", build_once):
            return 1
        for version in asked or [*_list_classifiers(), *AHEAD]:
            python = _find(version)
            if python is None:
                print(f"\nPython {version}: not on this machine", flush=True)
                continue
            results[version] = _try(python, built[0], folder / version, hiding)
    print(*(f"Python {one}: {'passed' if good else 'FAILED'}" for one, good in results.items()))
    return 0 if results and all(results.values()) else 1


def _try(python, wheel, folder, hiding):
    """Run the steps on one Python until one fails. Return True if none did."""
    version = subprocess.run(
        [python, "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    print(f"\n{version.stdout.strip()}", flush=True)
    (folder / "home").mkdir(parents=True)
    begun, made = time.monotonic(), []

    def make():
        constraints = folder / "constraints.txt"
        constraints.write_bytes((ROOT / "constraints.txt").read_bytes())
        environment = Environment(python, folder / "environment", constraints)
        log = copy_watch(folder, ROOT)
        made.append(Steps(environment, wheel, folder, log, hiding, _read_example()))
        return ""

    good = _step("empty environment", make) and all(
        _step(name, act) for name, act in made[0].list_steps().items()
    )
    print(f"  {time.monotonic() - begun:6.1f} s  in all", flush=True)
    return good


def _step(name, act):
    """Run a step, and print its time and what it says. Return False if it failed."""
    begun = time.monotonic()
    try:
        said, failed = act(), None
    except Failed as error:
        said, failed = f"FAILED: {error}", error
    except subprocess.TimeoutExpired as error:
        said, failed = f"FAILED: {error}", Failed(str(error))
    print(f"  {time.monotonic() - begun:6.1f} s  {name:<24} {said}".rstrip(), flush=True)
    if failed is not None and failed.printed:
        print(failed.printed, file=sys.stderr, flush=True)
    return failed is None


def _read_example():
    """Return the first example of docs/ci.md, of which the page shows the result."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    return found[1]


def _list_classifiers():
    return (
        found[1]
        for found in re.finditer(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    )


def _find(version):
    """Return the interpreter of a version, which is none of an environment in the checkout."""
    if version == THIS:
        return Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    done = subprocess.run(
        ["sh", str(ROOT / "tests/find_python.sh"), version],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
