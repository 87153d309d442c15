"""Provide a sandbox of every isolation.

A test is skipped only if the tool is not installed or the kernel gives no user namespaces, which
the tools themselves report. A sandbox of ours that does not hold is a failure.
"""

import asyncio
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from serve_eval.sandbox.isolation import ISOLATIONS, as_user
from serve_eval.sandbox.probe import UNUSED_UIDS, strongest
from serve_eval.schema import Program

FIRST, *OTHERS = ISOLATIONS
PLAIN = {
    "bubblewrap": ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "/bin/true"],
    "namespaces": ["unshare", "--user", "--map-root-user", "/bin/true"],
}
"""The minimal use of each tool; it works or fails independently of our code."""
REQUIRED = "SERVE_EVAL_ISOLATIONS_REQUIRED"
"""Environment variable: if set, a missing isolation is a failure instead of a skip."""


def unavailable(name):
    """Return why this machine cannot have an isolation at all, None if it can."""
    tool, *_ = PLAIN[name]
    if shutil.which(tool) is None:
        return f"{tool} is not installed"
    uid = UNUSED_UIDS[0] if os.geteuid() == 0 else None
    done = subprocess.run(
        as_user(PLAIN[name], uid), capture_output=True, text=True, check=False, timeout=30
    )
    return (
        None
        if done.returncode == 0
        else f"{' '.join(PLAIN[name])} fails here: {done.stderr.strip()}"
    )


def held(name, isolations=ISOLATIONS):
    """Return the sandbox of an isolation.

    Skips if the machine cannot have one; raises if ours does not hold.
    """
    reason = unavailable(name)
    if reason is not None and os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set: {reason}")
    if reason is not None:
        pytest.skip(reason)
    return asyncio.run(strongest(at_once=2, isolations={name: isolations[name]}))


@pytest.fixture(
    scope="session",
    params=[FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def isolated(request):
    return held(request.param)


@pytest.fixture(scope="session", params=[FIRST, *OTHERS])
def each(request):
    """Parametrise with every isolation, in the quick tests too: for the few that are worth it."""
    return held(request.param)


@pytest.fixture
def run(isolated):
    """Run one program from within a test."""
    return lambda code, checks="", stdin="", wall_s=10.0: asyncio.run(
        isolated[0].run(Program(code=code, checks=checks, stdin=stdin, wall_s=wall_s))
    )


@pytest.fixture
def mark():
    """Return a word that identifies processes."""
    return f"mark{uuid.uuid4().hex}"


def marked(mark):
    """Return the processes of this machine with this name."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if (place / "cmdline").read_bytes().startswith(mark.encode()):
                    found.append(int(place.name))
            except OSError:
                continue
    return found
