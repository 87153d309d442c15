"""Test deployments of several servers: their launch, joined answers and attribution.

All are processes of the stand-in: the coordinator of the orchestrator and its two, and workers
that count as two front ends.

The join is exact on main and almost impossible by times.

A run names the corrupt server, and so does a check of each worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import pytest

from serve_eval.errors import LaunchError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers, launch
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.attribution.matching import METRICS, TIMES, TRACES
from serve_eval.launchers import trtllm_disaggregated
from serve_eval.launchers._machine import lock_files
from serve_eval.launchers._standin.etcd import Etcd
from serve_eval.plugins import registry
from serve_eval.schema import Spec
from serve_eval.workflows import attribute
from tests.launchers.test_server_processes import LEFT_S, MARK, ROOT, check_nothing_left, marked
from tests.launchers.test_with_standin import read_processes
from tests.root import ROOT as ETCD_ROOT
from tests.standin.deployments import environment, free_port

pytestmark = pytest.mark.slow
NAMES = ["context_0", "context_1", "generation_0", "orchestrator"]
REQUESTS = 40
START_S = 120.0
"""Six interpreters start, on a machine that others may use."""
NOTHING_JUDGED = 3


class Fleet(NamedTuple):
    """A run of a fleet: its process, its folder, what it said, and the mark of its processes."""

    process: subprocess.Popen[bytes]
    folder: Path
    said: Path
    mark: str

    def wait_for(self, words):
        deadline = time.monotonic() + START_S
        while words not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)


@contextmanager
def fleet(place, data_root, *, per_second=None):
    """Start `serve-eval run` with a plan of a fleet; end it at the end."""
    side = {"config": {"num_serve_frontends": 2}}
    plan = {
        "model": "org/model",
        "tasks": [{"name": "gsm8k", "num_samples": REQUESTS}],
        "dataset_root": str(data_root),
        "no_reference": True,
        "launcher": {
            "name": "trtllm_disaggregated",
            "gpus": [0, 1, 2],
            "perf_metrics": True,
            "context_servers": {"num_instances": 2, **side},
            "generation_servers": side,
            "orchestrator": {"num_workers": 2},
        },
    }
    if per_second is not None:
        plan["limits"] = {"rate_limit": per_second}
    (place / "tmp").mkdir()
    (place / "plan.yaml").write_bytes(msgspec.json.encode(plan))
    mark, said = uuid.uuid4().hex, place / "said"
    env = environment("main", STANDIN_POLL_S="0.1", TMPDIR=str(place / "tmp"))
    env |= {MARK: mark, lock_files.VARIABLE: str(place / "locks")}
    env |= {"XDG_CACHE_HOME": str(place / "cache"), "SERVE_EVAL_NO_PICTURES": "1"}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve_eval", "run", "plan.yaml", "-o", str(place / "run")],
            cwd=place,
            env={**env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield Fleet(process, place / "run", said, mark)
    finally:
        process.kill()
        process.wait()


def test_a_run_with_a_fleet_starts_counts_and_ends_all(data_root, tmp_path, monkeypatch):
    with fleet(tmp_path, data_root) as run:
        assert run.process.wait(START_S) == NOTHING_JUDGED, run.said.read_text()
    report = msgspec.json.decode((run.folder / "report.json").read_bytes())
    info = report["endpoint"]["info"]
    assert sorted(info["servers"]) == NAMES
    assert info["front_ends"] == dict.fromkeys(NAMES, 2)
    [task] = report["tasks"]
    assert (task["result"]["scored"], task["result"]["failed"]) == (REQUESTS, 0)
    assert task["attribution"]["joined"] == REQUESTS
    answered = {one["worker"]: one["answers"] for one in task["attribution"]["rows"]}
    addresses = [info["servers"][name].partition("://")[2] for name in NAMES[:2]]
    assert sorted(answered) == sorted(addresses)
    assert sum(answered.values()) == REQUESTS
    states = {one["claim"]: one["state"] for one in report["path"]}
    assert states["kv_transfer"] == "proven"
    assert not [line for line in report["warnings"] if "other clients" in line]
    processes = read_processes(run.folder / "logs/orchestrator.log", 3)
    assert len(set(processes)) == 3
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    check_nothing_left(run.mark, run.folder, tmp_path / "tmp", tmp_path / "locks")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_fleet_whose_run_is_stopped_leaves_nothing(how, data_root, tmp_path, monkeypatch):
    with fleet(tmp_path, data_root, per_second=2) as run:
        run.wait_for("the first completion took")
        # Four servers with a supervisor each, two more processes, and the command.
        assert len(marked(run.mark)) >= 11
        run.process.send_signal(how)
        code = run.process.wait(LEFT_S)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130), run.said.read_text()
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    check_nothing_left(run.mark, run.folder, tmp_path / "tmp", tmp_path / "locks")


KEY = "sk-a-key-of-the-front-door"
N = 400
IN_FLIGHT = 64
OPTIONS = {
    "perf_metrics": True,
    "context_servers": {"num_instances": 2},
    "generation_servers": {"num_instances": 2},
    "ready_timeout_s": 60.0,
}


def run(plan, out, seen=lambda one: one):
    """Return the report of a run and its endpoint, which `seen` may change before the run."""

    async def story():
        async with launch(plan, prepare(plan), out.parent) as endpoint:
            known = seen(endpoint)
            return (
                await evaluate(
                    plan, out, environ=os.environ, launching=lambda *_: nullcontext(known)
                ),
                known,
            )

    return asyncio.run(story())


def lines(out):
    return [json.loads(line) for line in (out / "served.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_every_request_of_a_saturated_deployment_is_joined_on_main(
    standin,
    plan_of,
    tmp_path,
    flavour,
    stream,
):
    standin(flavour)
    plan = plan_of("trtllm_disaggregated", OPTIONS, limit=N, concurrency=IN_FLIGHT, stream=stream)
    report, endpoint = run(plan, tmp_path / "run")
    assert report.tasks[0].result.scored == N
    told = report.tasks[0].attribution
    joined = 0 if told is None else told.joined
    print(f"{flavour}, {'streams' if stream else 'whole answers'}: {joined} of {N} joined")
    if flavour == "v12":
        assert told is None or told.how == TIMES
        return
    assert (told.how, told.joined) == (METRICS, N)
    servers = endpoint.info.servers
    assert isinstance(servers, Mapping)
    by_name = {url.removeprefix("http://"): name for name, url in servers.items()}
    found = lines(tmp_path / "run")
    assert Counter(by_name[one["context"]] for one in found) == {
        "context_0": N / 2,
        "context_1": N / 2,
    }
    assert {by_name[one["generation"]] for one in found} == {"generation_0", "generation_1"}
    assert all(one["kv_transfer_s"] > 0 for one in found)
    assert not any("perf metrics" in line for line in report.warnings)


def test_traces_join_what_the_answers_do_not_tell_and_hold_no_key(
    standin,
    plan_of,
    tmp_path,
    monkeypatch,
):
    """Only the orchestrator's traces are used; the file is private."""
    standin("main")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    silent = {**OPTIONS, "orchestrator": {"return_perf_metrics": False}}
    report, endpoint = run(
        plan_of("trtllm_disaggregated", silent, limit=40, concurrency=16), tmp_path / "run"
    )
    told = report.tasks[0].attribution
    assert (told.how, told.joined) == (TRACES, 40)
    folder = Path(endpoint.info.log_dir) / "request_traces"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.rglob("*.jsonl"))
    assert {path.name.partition("-")[0] for path in files} == {"requests", "responses"}
    texts = [path.read_text() for path in files]
    assert not any(KEY in text for text in texts)
    assert sum(text.count(f"Bearer {'*' * len(KEY)}") for text in texts) >= 40


def test_a_run_that_goes_on_joins_what_the_killed_session_left(standin, plan_of, tmp_path):
    standin("main")
    plan = plan_of("trtllm_disaggregated", OPTIONS, limit=20, concurrency=16)
    run(plan, tmp_path / "run")
    # A killed session leaves no such file; it is written later.
    (tmp_path / "run/served.jsonl").unlink()
    report, _ = run(replace(plan, repeats=2), tmp_path / "run")
    told = report.tasks[0].attribution
    assert (told.how, told.joined, told.planned) == (METRICS, 40, 40)


def test_a_request_that_was_tried_again_is_joined_by_its_last_attempt(standin, plan_of, tmp_path):
    """A worker refuses its first requests, and some streams break."""
    faults = [
        {"refuse_first": 5, "when": {"gpus": "2"}},
        {"drop_stream": 2, "share": 0.3, "when": {"gpus": "3"}},
    ]
    standin("main", faults)
    options = {**OPTIONS, "gpus": [0, 1, 2, 3]}
    plan = plan_of("trtllm_disaggregated", options, limit=60, concurrency=16, stream=True)
    report, _ = run(plan, tmp_path / "run")
    told, result = report.tasks[0].attribution, report.tasks[0].result
    assert result.scored == told.joined == 60
    assert sum(len(one["attempts"]) > 1 for one in _results(tmp_path / "run")) >= 5


def _results(out):
    text = (out / "samples/gsm8k.jsonl").read_text()
    return [json.loads(line)["response"] for line in text.splitlines() if '"response":{' in line]


OPTIONS_ATTRIBUTION = {
    "perf_metrics": True,
    "gpus": [0, 1, 2, 3, 4, 5],
    "context_servers": {"num_instances": 2},
    "generation_servers": {"num_instances": 4},
    "ready_timeout_s": 60.0,
}
TAKES = [{"latency_s": 0.01 * gpu, "when": {"gpus": str(gpu)}} for gpu in (2, 3, 5)]
CORRUPT = {"latency_s": 0.04, "corrupt_after": 0, "when": {"gpus": "4"}}
SOUND = {"latency_s": 0.04, "when": {"gpus": "4"}}


@pytest.mark.parametrize("corrupt", [True, False])
async def test_a_corrupt_generation_server_of_four_is_named_and_sound_ones_are_not(
    standin, plan_of, tmp_path, corrupt
):
    plan = plan_of("trtllm_disaggregated", OPTIONS_ATTRIBUTION, limit=200, concurrency=8)
    plan = replace(plan, tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),))
    _write_answers(tmp_path / "answers.jsonl", prepare(plan), lambda task, sample: 0.9)
    faults = [*TAKES, CORRUPT if corrupt else SOUND]
    standin("v12", faults, STANDIN_ANSWERS=str(tmp_path / "answers.jsonl"))
    out = tmp_path / "run"
    async with launch(plan, prepare(plan), tmp_path) as endpoint:
        report = await evaluate(plan, out, environ={}, launching=lambda *_: nullcontext(endpoint))
        asking = await attribute.prepare_asking(out, plan, samples=20, environ={})
        servers = endpoint.info.servers
        assert isinstance(servers, dict)
        done, url = await attribute.attribute(out, asking, environ={}), servers["generation_2"]
    told = report.tasks[0].attribution
    assert told.joined > 50
    assert done.in_pairs is not None
    named = [
        {row.worker for row in part.rows if row.accused}
        for part in (told, done.alone, done.in_pairs)
    ]
    guilty = [{url.removeprefix("http://")}, {f"{url}/v1"}, {f"{url}/v1"}]
    assert named == (guilty if corrupt else [set(), set(), set()])


ETCD = os.environ.get("ETCD") or shutil.which(
    "etcd", path=f"{os.environ.get('PATH')}:{ETCD_ROOT / '.venv-etcd/bin'}"
)
ETCD_START_S = 20.0


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
    deadline = time.monotonic() + ETCD_START_S
    with httpx.Client(trust_env=False) as http:
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if http.get(url).json()["health"] == "true":
                    return
            time.sleep(0.1)
    raise AssertionError(f"etcd is not healthy after {ETCD_START_S:g} s")


def start(context, story, **options):
    times = {"ready_timeout_s": 20.0, "answer_timeout_s": 10.0}
    given = registry.check_options(trtllm_disaggregated.launch, {**times, **options}, "launcher")

    async def tell():
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**given)
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


@pytest.mark.slow
@pytest.mark.skipif(ETCD is None, reason="no etcd: make test-etcd brings one")
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


@pytest.mark.slow
@pytest.mark.skipif(ETCD is None, reason="no etcd: make test-etcd brings one")
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
