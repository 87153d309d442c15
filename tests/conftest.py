"""Fixtures that several test files use: generated data sets, and the shared folder of real data
where it is present.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from launchers._trtllm import mpi
from serve_eval.datasets.generated import write_gsm8k, write_humaneval, write_mmlu
from serve_eval.plugins.scope import scope
from serve_eval.tasks._mmlu_subjects import SUBJECTS
from tests.tasks.made_data import write_all

# A shell that starts the tests in its background has SIGINT ignored, which every process of a test
# would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Correctness, not speed, is tested here: a busy machine must not fail a property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines are those that this user gets, also where root runs the tests."""
    monkeypatch.setattr(mpi, "we_are_root", lambda: False)


@pytest.fixture(autouse=True)
def _own_scope() -> Iterator[None]:
    """What a test includes is gone after it."""
    with scope():
        yield


ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Folders for a cache and for state of the tests' own, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@asynccontextmanager
async def _server_here(
    command: Sequence[str], *, ready_file: Path, log_file: Path
) -> AsyncIterator[tuple[str, Any]]:
    """`own_server` without a process: the simulator of a command line, in the event loop of who
    asks it.
    """
    from launchers._process import own_server
    from launchers._simulated.__main__ import parse
    from launchers._simulated.simulator import serve

    if "--crash-after" in command:  # which ends the process
        async with own_server.own_server(
            command, ready_file=ready_file, log_file=log_file
        ) as found:
            yield found
        return
    config, _, _ = parse(command[3:])
    async with serve(config) as url:
        log_file.touch(mode=0o600)
        log_file.write_text(f"simulated endpoint at {url}\n")
        yield url, SimpleNamespace(pid=0)


@pytest.fixture(scope="module")
def simulated_here() -> Iterator[None]:
    """The launcher `simulated` without a process of its own, whose start costs more than what most
    tests ask of it. That process is tested in tests/launchers/test_simulated.py, and by every
    command that is a process itself.
    """
    from launchers import simulated

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "own_server", _server_here)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; a test that needs it is skipped elsewhere."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared folder with real data is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset root with generated data of every task, of the sizes that the registered references
    ask for.
    """
    root = tmp_path_factory.mktemp("data")
    write_gsm8k(root / "gsm8k")
    write_mmlu(root / "mmlu", SUBJECTS)
    write_humaneval(root / "humaneval")
    write_all(root)
    return root
