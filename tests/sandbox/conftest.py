"""A sandbox of every isolation. A test is skipped only where the tool is not installed, or where
the kernel gives no user namespace to anybody, which the tools themselves are asked; a sandbox of
ours that does not hold is a failure.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from serve_eval.sandbox.isolation import ISOLATIONS, Wrap, as_user
from serve_eval.sandbox.probe import UNUSED_UIDS, strongest
from serve_eval.sandbox.sandbox import Sandbox
from serve_eval.schema import ExecutionResult, Isolation, Program

FIRST, *OTHERS = ISOLATIONS
PLAIN = {
    "bubblewrap": ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "/bin/true"],
    "namespaces": ["unshare", "--user", "--map-root-user", "/bin/true"],
}
"""What each tool does at the least; that it does, nothing of ours decides."""
REQUIRED = "SERVE_EVAL_ISOLATIONS_REQUIRED"
"""Set where both isolations have to be there: what would be skipped fails then."""


def unavailable(name: str) -> str | None:
    """Why this machine cannot have an isolation, whatever we do; None where it can."""
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


def held(name: str, isolations: Mapping[str, Wrap] = ISOLATIONS) -> tuple[Sandbox, Isolation]:
    """The sandbox of an isolation. Skips where the machine cannot have one; raises where ours does
    not hold.
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
def isolated(request: pytest.FixtureRequest) -> tuple[Sandbox, Isolation]:
    return held(request.param)


@pytest.fixture(scope="session", params=[FIRST, *OTHERS])
def each(request: pytest.FixtureRequest) -> tuple[Sandbox, Isolation]:
    """Every isolation in the quick tests too: for the few that are worth it."""
    return held(request.param)


@pytest.fixture
def run(isolated: tuple[Sandbox, Isolation]) -> Callable[..., ExecutionResult]:
    """Runs one program from within a test."""
    return lambda code, checks="", stdin="", wall_s=10.0: asyncio.run(
        isolated[0].run(Program(code=code, checks=checks, stdin=stdin, wall_s=wall_s))
    )


@pytest.fixture
def mark() -> str:
    """A word to know processes by."""
    return f"mark{uuid.uuid4().hex}"


def marked(mark: str) -> list[int]:
    """The processes of this machine that go by this name."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if (place / "cmdline").read_bytes().startswith(mark.encode()):
                    found.append(int(place.name))
            except OSError:
                continue
    return found
