"""Provide fixtures for several test files: generated data sets, and the folder of real data."""

import asyncio
import gc
import inspect
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from serve_eval.client.attempts import outcome
from serve_eval.datasets.generated import write_gsm8k, write_humaneval, write_mmlu
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.plugins.scope import scope
from serve_eval.tasks.mmlu import SUBJECTS
from tests.tasks.made_data import write_all

# BLAS threads of several workers would wait for each other on the same cores, and cost
# processor time. Nothing above imports numpy, which reads these variables once.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# A shell that starts the tests in its background ignores SIGINT, which every process of a test
# would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These tests check correctness, not speed: a busy machine must not fail a property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


SHORT_PAUSE_S = 0.02
KNOWN_SLOW = frozenset(
    json.loads((Path(__file__).with_name("slow_seconds.json")).read_text(encoding="utf-8"))
)


# Tests and their modules stay until the end: passes over them during the collection find nothing.
gc.disable()


def pytest_itemcollected(item):
    """Mark the tests of the table of slow tests, which are slow here if not by nature."""
    if item.nodeid in KNOWN_SLOW:
        item.add_marker("slow")


def pytest_collection_finish():
    """Begin garbage collection, from which the collected tests and their modules are exempt."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asked = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in asked}))
    return True


@pytest.fixture(autouse=True)
def ordinary_user(monkeypatch):
    """Use the command lines of an ordinary user, even if root runs the tests."""
    monkeypatch.setattr(kv_transfer, "we_are_root", lambda: False)


@pytest.fixture(autouse=True)
def _no_drawings(request, monkeypatch):
    """Leave the drawing library out of tests that are not about pages: it takes a second."""
    if not {"page", "pictures"} & set(request.node.nodeid.split("/")):
        monkeypatch.setitem(sys.modules, "vl_convert", None)


@pytest.fixture(scope="session", autouse=True)
def _short_pauses():
    """Ask again after milliseconds; the pauses are tested in client/test_attempts.py.

    A test that asks a port where nobody listens would wait for seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "BASE_S", SHORT_PAUSE_S)
        patch.setattr("serve_eval.evaluation.probe_server.PAUSE_S", SHORT_PAUSE_S)
        yield


@pytest.fixture(autouse=True)
def _own_scope():
    """Remove everything that a test includes afterwards."""
    with scope():
        yield


ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """Use separate folders for cache, state and configuration instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="module")
def simulated_here():
    """Use the launcher `simulated` without its own process, whose start costs more than most tests.

    tests/launchers/test_simulated.py, and every command that is a process itself, test that
    process.
    """
    from serve_eval.launchers import simulated
    from tests.server_here import server_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "own_server", server_here)
        yield


@pytest.fixture(scope="session")
def shared():
    """Return the folder of real data next to the checkout; skip the test if it is missing."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared folder with real data is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Return a data set root with generated data of every task.

    The sizes are those that the registered references need.
    """
    root = tmp_path_factory.mktemp("data")
    write_gsm8k(root / "gsm8k")
    write_mmlu(root / "mmlu", SUBJECTS)
    write_humaneval(root / "humaneval")
    write_all(root)
    return root


@pytest.fixture(scope="session")
def vectors(shared):
    """Return all test vectors of one kind; a kind without vectors fails the test.

    The central ones are also rows in the tests, so that these run anywhere.
    """
    every = json.loads((shared / "vectors" / "verdict_vectors.json").read_text())["vectors"]

    def of_kind(kind):
        chosen = [vector for vector in every if vector["kind"] == kind]
        assert chosen, f"no vectors of kind {kind}"
        return chosen

    return of_kind
