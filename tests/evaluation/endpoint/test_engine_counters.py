"""Test what a run reports of the servers' own counters, over real sockets."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from io import StringIO

import pytest
from rich.console import Console

from serve_eval.client.client import Client
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evidence.engine_counters import Companions, begin, end, join, remarks
from serve_eval.processes.resources import CoreLoad
from serve_eval.report.document import print_document
from serve_eval.report.run.document import describe_engines, make_run_document
from serve_eval.schema import (
    Connection,
    Endpoint,
    EngineCounts,
    EngineReport,
    Limits,
    Plan,
    ServerCounts,
    Spec,
)
from serve_eval.storage.sessions import read_sessions
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    json_reply,
    raw,
    version,
)
from tests.standin.deployments import deployed

N = 12
KEY = "a secret of the user"


@dataclass
class Engine:
    """A server that counts as vLLM does; `others` are the requests of other clients to come."""

    owner: str | None = "vllm"
    start_s: float = 1795703409.65
    source: str = "local_compute"
    more: Callable[[int], Mapping[str, int]] = lambda n: {}
    others: int = 0
    refused: range = range(0)
    answered: int = 0
    restart_at: int | None = None
    readable: bool = True
    pause_s: float = 0.0
    server: ScriptedServer = field(init=False)

    def __post_init__(self):
        listed = {"id": "m", "object": "model", "owned_by": self.owner}
        self.server = ScriptedServer(
            self._answer_later,
            routes={
                "/v1/models": json_reply({"object": "list", "data": [listed]}),
                "/version": version("0.32.0"),
                "/metrics": self._metrics,
            },
        )

    @property
    def asked_metrics(self):
        return [one for one in self.server.requests if one.path == "/metrics"]

    async def _answer_later(self, request):
        await asyncio.sleep(self.pause_s)
        return self._answer(request)

    def _answer(self, request):
        if request.max_tokens < 10:
            return answer("probe")
        n = self.answered + len(self.refused)
        if self.refused and request.number % N in self.refused:
            return fail(400)
        if n == self.restart_at:
            self.answered, self.start_s = 0, self.start_s + 100
        self.answered += 1 + self.others
        self.others = 0
        return answer("#### 1", usage=(7, 3))

    def _metrics(self, request):
        if not self.readable:
            return fail(500)
        n, label = self.answered, 'engine="0",model_name="m"'
        lines = [
            f"process_start_time_seconds {self.start_s}",
            f'vllm:request_success_total{{{label},finished_reason="stop"}} {n}.0',
            f"vllm:prompt_tokens_total{{{label}}} {7 * n}.0",
            f"vllm:generation_tokens_total{{{label}}} {3 * n}.0",
            f"vllm:num_preemptions_total{{{label}}} 0.0",
            f'vllm:prompt_tokens_by_source_total{{{label},source="{self.source}"}} {7 * n}.0',
            *(f"vllm:{name}_total{{{label}}} {value}.0" for name, value in self.more(n).items()),
        ]
        return raw("\n".join(lines).encode() + b"\n")


def make_plan(**more):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="word_problems", options={"num_samples": N}),),
        limits=Limits(concurrency=1, max_attempts=1),
        no_reference=True,
        **more,
    )


def _run(engine, folder):
    async def main():
        async with engine.server.serve() as url:
            plan = replace(make_plan(), launcher=Spec(name="external", options={"base_url": url}))
            return await evaluate(plan, folder, environ={}, moved=True)

    return asyncio.run(main())


def _said(report):
    return [line for line in report.warnings if "engine" in line or "KV transfer" in line]


def _counts(report):
    [server] = report.engine.servers
    return server.counts


def test_a_run_reports_what_the_engine_counted_meanwhile(tmp_path):
    engine = Engine(answered=1000, more=lambda n: {"prefix_cache_hits": 2 * n})
    report = _run(engine, tmp_path)
    counts = EngineCounts(
        requests=N,
        prompt_tokens=7 * N,
        generated_tokens=3 * N,
        prompt_tokens_by_source={"local_compute": 7 * N},
        prefix_cache_hits=2 * N,
        preemptions=0,
    )
    assert _counts(report) == counts
    assert report.engine.answered == N <= report.engine.sent
    assert _said(report) == []
    assert len(engine.asked_metrics) == 2
    saved = json.loads((tmp_path / "report.json").read_text())["engine"]
    assert saved["servers"][0]["counts"]["prompt_tokens"] == 7 * N
    out = StringIO()
    print_document(make_run_document(report, tmp_path), Console(file=out, width=200), verbose=True)
    assert (
        "engine: 84 prompt tokens; 36 generated tokens; 0 preemptions; prefix cache hit 24 tokens"
        in out.getvalue()
    )


@pytest.mark.parametrize("owner", [None, "tensorrt_llm", "me"])
def test_metrics_are_asked_of_vllm_only(owner, tmp_path):
    engine = Engine(owner=owner)
    report = _run(engine, tmp_path)
    assert (engine.asked_metrics, report.engine) == ([], None)
    assert describe_engines(report) == []
    assert read_sessions(tmp_path)[0].engine is None


def test_a_server_that_started_again_is_named_and_the_run_is_judged(tmp_path):
    report = _run(Engine(answered=3, restart_at=8), tmp_path)
    assert (report.tasks[0].result.scored, _counts(report)) == (N, None)
    [line] = _said(report)
    assert line.startswith("what the engine of server (http://127.0.0.1:")
    assert line.endswith(
        "counted is not known: it restarted, or another server answered, during the session"
    )


def test_counters_that_cannot_be_read_at_the_end_are_not_known(tmp_path):
    engine = Engine()
    engine.more = lambda n: _unread(engine)
    report = _run(engine, tmp_path)
    assert _counts(report) is None
    assert _said(report)[0].endswith("they could not be read at the end of the session")


def _unread(engine):
    """Make the next reading fail."""
    engine.readable = False
    return {}


def test_the_counts_of_the_sessions_of_a_run_are_added(tmp_path):
    first = Engine(answered=50, refused=range(3))
    assert _run(first, tmp_path).tasks[0].result.failed == 3
    report = _run(Engine(answered=9), tmp_path)
    counts = _counts(report)
    assert (counts.requests, counts.prompt_tokens) == (N, 7 * N)
    assert report.engine.answered == N
    assert report.engine.sent >= N + 3
    assert _said(report) == []
    assert len(read_sessions(tmp_path)) == 2


def test_the_requests_of_other_clients_are_named(tmp_path):
    [line] = _said(_run(Engine(others=30), tmp_path))
    assert line.startswith(f"the engine finished {N + 30} requests, and this run sent at most ")
    assert line.endswith(": its counts include other clients")
    assert _said(_run(Engine(others=3), tmp_path / "few")) == []


def test_failed_transfers_are_named(tmp_path):
    faults = {"nixl_num_failed_transfers": 1, "nixl_num_kv_expired_reqs": 0}
    engine = Engine(
        source="external_kv_transfer",
        more=lambda n: {name: n * times for name, times in faults.items()},
    )
    report = _run(engine, tmp_path)
    [line] = _said(report)
    assert line.startswith("the KV transfer of server (http://127.0.0.1:")
    assert line.endswith(f"failed in part: failed transfers {N}")
    assert describe_engines(report)[0].startswith(
        "engine: 84 prompt tokens, 84 of them by KV transfer; "
    )


def test_the_acceptance_length_is_that_of_the_counters(tmp_path):
    spec = {
        "spec_decode_num_drafts": 10,
        "spec_decode_num_draft_tokens": 30,
        "spec_decode_num_accepted_tokens": 2,
    }
    engine = Engine(more=lambda n: {name: n * times for name, times in spec.items()})
    report = _run(engine, tmp_path)
    [line] = describe_engines(report)
    assert line.endswith(
        "; acceptance length 1.20 by its counters (1 + 24 accepted tokens / 120 drafts)"
    )


# ------------------------------------------------------------------------------------------------
# Deployments


def _at(urls, front, environ, folder):
    """Run at `front`, whose launcher reports the servers in `urls`."""

    @asynccontextmanager
    async def launching(plan, prepared, logs):
        yield Endpoint(base_url=front, model="m", info={"servers": urls})

    plan = replace(make_plan(), connection=Connection(api_key_env="THE_KEY"))
    return asyncio.run(evaluate(plan, folder, environ=environ, launching=launching))


def test_each_server_is_read_at_its_own_address_without_the_key(tmp_path):
    context, generation = Engine(answered=5), Engine(source="external_kv_transfer")
    front = Engine(owner="somebody")
    with (
        context.server.serve_in_thread() as c,
        generation.server.serve_in_thread() as g,
        front.server.serve_in_thread() as url,
    ):
        urls = {"context_0": c, "generation_0": g, "orchestrator": url}
        report = _at(urls, url, {"THE_KEY": KEY}, tmp_path)
    assert [(one.server, one.role) for one in report.engine.servers] == [
        ("context_0", "context"),
        ("generation_0", "generation"),
    ]
    assert len(context.asked_metrics) == len(generation.asked_metrics) == 2
    assert front.asked_metrics == []
    assert KEY in front.server.asked[0].headers["Authorization"]
    told = [*context.server.requests, *generation.server.requests]
    assert not [one for one in told if "Authorization" in one.headers]
    # Nothing was passed on here, and a generation server that nothing reached is named.
    assert describe_engines(report) == [
        "engine (context): 0 prompt tokens; 0 generated tokens; 0 preemptions",
        "engine (generation): 0 prompt tokens, 0 of them by KV transfer; 0 generated tokens;"
        " 0 preemptions",
    ]
    [line] = _said(report)
    assert line.startswith(f"the engine finished 0 requests, and this run has {N} answers")


def test_a_server_that_cannot_be_reached_is_left_out(tmp_path):
    front = Engine()
    with front.server.serve_in_thread() as url:
        urls = {"server_0": url, "server_1": "http://127.0.0.1:9/v1", "server_2": "no address"}
        report = _at(urls, url, {"THE_KEY": KEY}, tmp_path)
    assert [one.server for one in report.engine.servers] == ["server_0"]
    assert KEY in front.asked_metrics[0].headers["Authorization"]


def test_the_workers_of_trtllm_serve_are_read_where_that_takes_nothing_from_them():
    async def main():
        async with AsyncExitStack() as stack:
            found = await stack.enter_async_context(deployed(1, 1))
            endpoint = Endpoint(
                base_url=found.url, model="M", info={"version": "1.2.0", "servers": found.workers}
            )
            client = await stack.enter_async_context(Client(endpoint, Limits()))
            companions = Companions()
            meter = await begin(endpoint, client, 0, companions)
            routes = [one.route for one in meter.servers]
            reply = await client.exchange(
                "POST", "/v1/completions", b'{"model":"M","prompt":"Hi","max_tokens":4}'
            )
            assert getattr(reply, "status", None) == 200, reply
            return await end(meter, endpoint, client, 1, companions), routes

    report, routes = asyncio.run(main())
    assert routes == 2 * ["/prometheus/metrics/"]
    assert [(one.role, one.counts) for one in report.servers] == [
        ("context", EngineCounts(requests=1)),
        ("generation", EngineCounts(requests=1)),
    ]
    assert remarks([report]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counts of Linux are read")
@pytest.mark.parametrize(("share", "kept"), [(0.456, 0.46), (None, None)])
def test_a_load_says_how_busy_the_cores_of_this_machine_were(share, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(CoreLoad, "share", lambda _: share)
    [load] = _run(Engine(), tmp_path / "run").loads
    assert load.cores_busy == kept


# ------------------------------------------------------------------------------------------------
# Sums and remarks


def _report(*requests, sent=100, answered=100, role=None):
    return EngineReport(
        servers=tuple(
            ServerCounts(
                server=f"s{i}",
                url=f"http://{i}",
                role=role,
                counts=None if count is None else EngineCounts(requests=count),
                lost="why" if count is None else None,
            )
            for i, count in enumerate(requests)
        ),
        sent=sent,
        answered=answered,
    )


MORE, FEWER = "its counts include other clients", "its counts leave them out"


@pytest.mark.parametrize(
    ("report", "ends"),
    [
        (_report(103), None),
        (_report(104), MORE),
        (_report(97), None),
        (_report(96), FEWER),
        (_report(96, answered=90), None),
        (_report(1010, sent=1000, answered=1000), None),
        (_report(1011, sent=1000, answered=1000), MORE),
        (_report(60, 40), None),
        (_report(500, role="context"), None),
        (_report(60, None), "is not known: why"),
    ],
)
def test_requests_of_others_are_told_from_ours(report, ends):
    found = remarks([report])
    assert [line for line in found if ends is None or not line.endswith(ends)] == []
    assert len(found) == (ends is not None)


def test_sessions_without_counts_are_named_and_lost_ones_stay_lost():
    assert (join([]), join([None]), remarks([None, None])) == (None, None, [])
    [line] = remarks([_report(100), None])
    assert line.startswith("the engine's counts leave out 1 of 2 sessions")
    both = join([_report(None), _report(100)])
    assert [(one.counts, one.lost) for one in both.servers] == [(None, "why")]
    assert (both.sent, both.answered) == (200, 200)
