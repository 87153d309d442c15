"""The deployments of the tests, and the table that they print."""

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.peers.conftest import SMOKE_TABLE, ours
from tests.peers.conftest import TABLE as WAYS_TABLE
from tests.vllm.deployments import (
    MODEL,
    OPTIONS,
    PYTHON,
    READY_S,
    Deployments,
    NoKernelError,
    aggregated,
    disaggregated,
    write_model,
)

__all__ = ["ours"]

TABLE = []
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
FLOOR, PROBES = 0.22, 80
"""The largest distance of healthy engines with these weights, in nats, and the probes asked."""
SIDE_PORT = 5680
"""The first of the ports at which the further generation servers meet the context server."""


@pytest.fixture(scope="session")
def deployments(tmp_path_factory):
    if not PYTHON.exists():
        pytest.skip(f"vLLM was not installed: {PYTHON} is not there (make test-vllm)")
    began = time.monotonic()
    found = Deployments(tmp_path_factory.mktemp("vllm"))
    try:
        yield found
    finally:
        found.close()
        TABLE.append(f"in all {time.monotonic() - began:.0f} s")


@pytest.fixture(scope="session")
def quantised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")

    def of(kind):
        return folder / kind if (folder / kind).exists() else write_model(kind, folder / kind)

    return of


@contextmanager
def skipping():
    """Skip the test if a server says that this CPU cannot run it, with the server's own line.

    A server that does not start for another reason is an error.
    """
    try:
        yield
    except NoKernelError as error:
        pytest.skip(str(error))


def _start(deployments, name, spec):
    began = time.monotonic()
    with skipping():
        deployments.start(**{name: spec})
    TABLE.append(f"start of {name}: {time.monotonic() - began:.0f} s")
    return deployments[name]


@pytest.fixture(scope="session")
def eager(deployments):
    """Return the aggregated deployment as it is; the others have one change each."""
    return _start(deployments, "aggregated", aggregated())


@pytest.fixture(scope="session")
def w8a8(deployments, quantised):
    return _start(deployments, "w8a8", aggregated(model=str(quantised("w8a8"))))


@pytest.fixture(scope="session")
def w4a16(deployments, quantised):
    # The kernel takes no float32. On a CPU with AMX, vLLM would make W4A8 of it.
    env = {**OPTIONS["env"], "VLLM_CPU_INT4_W4A8": "0"}
    spec = aggregated(model=str(quantised("w4a16")), dtype="bfloat16", env=env)
    return _start(deployments, "w4a16", spec)


@pytest.fixture(scope="session")
def kv_fp8(deployments):
    return _start(deployments, "kv_fp8", aggregated(kv_cache_dtype="fp8"))


@pytest.fixture(scope="session")
def ngram(deployments):
    return _start(deployments, "ngram", aggregated(speculative=SPECULATION))


@pytest.fixture(scope="session")
def registering(deployments, tmp_path_factory):
    """Yield the file of a reference for `serve-eval verify`, and the command that makes it.

    It asks an aggregated server, while others start. Those that ran before are ended first, because
    all together need more memory than some machines have.
    """
    deployments.stop()
    deployments.start(aggregated=aggregated())
    file = tmp_path_factory.mktemp("verify") / "reference.json"
    how = ["--model", MODEL, "--floor", FLOOR, "--probes", PROBES, "-o", file.parent / "out"]
    asking = ["verify", deployments["aggregated"].base_url, "--register", file, *how]
    command = [sys.executable, "-m", "serve_eval", *map(str, asking)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield file, process
        finally:
            process.kill()


@pytest.fixture(scope="session")
def pairs(deployments, registering):
    """Return a disaggregated deployment and the aggregated one."""
    began = time.monotonic()
    deployments.start(disaggregated=disaggregated())
    TABLE.append(f"start of the servers of pairs: {time.monotonic() - began:.0f} s")
    return deployments


@pytest.fixture(scope="session")
def reference(registering):
    """Return a reference of the aggregated server for `serve-eval verify`."""
    file, process = registering
    began = time.monotonic()
    _, told = process.communicate(timeout=READY_S)
    assert process.returncode == 0, told
    TABLE.append(f"wait for the reference, {PROBES} probes: {time.monotonic() - began:.0f} s")
    return file


def address(endpoint, name):
    """Return the address of a launched server."""
    servers = endpoint.info.servers
    return servers[name]


def pytest_terminal_summary(terminalreporter):
    if TABLE:
        terminalreporter.section("the real vLLM")
        for line in [*WAYS_TABLE, *SMOKE_TABLE, *TABLE]:
            terminalreporter.write_line(line)
