"""Test attribution by the servers that a router names in the header fields of its replies."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice

import msgspec
import pytest
from rich.console import Console

from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.launch import _list_known
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.attribution import trace
from serve_eval.evidence.attribution.matching import HEADERS, IDS
from serve_eval.report.document import print_document
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.storage import journal
from serve_eval.storage.file_names import TRACE_FILE
from serve_eval.workflows.attribute import prepare_asking
from serve_eval.workflows.diagnose.story import diagnose
from tests.cli.command import environment
from tests.scripted_server import (
    Responder,
    ScriptedServer,
    answer,
    fail,
    json_reply,
    stall,
)

N = 60
BAD = "decode-1:9"
Headers = Mapping[str, str]


@dataclass
class Router:
    """A router of one context and three generation servers, which take turns.

    The servers named `wrong` answer wrongly, and those named `broken` fail. The first attempt of
    each prompt fails on the server `first_on`. With `moves`, only the first attempts at `broken`
    servers fail, since the second ones go to another. `names` are the headers of a reply by its
    generation server. `routes` are its other paths. From the prompt `stalls_at` on it does not
    answer, which sets `stalled`.
    """

    plan: Plan
    wrong: str = ""
    broken: str = ""
    first_on: str = ""
    moves: bool = False
    stalls_at: int = sys.maxsize
    routes: Mapping[str, Responder] = field(default_factory=dict)
    names: Callable[[str], Headers] = lambda server: {
        "X-Context-Server": "prefill-0:9",
        "X-Generation-Server": server,
    }
    servers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self):
        [prepared] = prepare(self.plan)
        self._seen = set()
        self._asked, self.stalled = 0, threading.Event()
        self._known = {}
        for place, sample in enumerate(prepared.dataset.samples):
            server = f"decode-{place % 3}:9"
            self.servers[sample.id] = server
            for prompt, right, wrong in _list_known(prepared.task, sample):
                self._known[prompt] = server, right, wrong
        self.server = ScriptedServer(self._reply, routes=self.routes)

    def _reply(self, request):
        if request.prompt not in self._known:
            return answer("2", headers=self.names("decode-0:9"))  # a probe
        server, right, wrong = self._known[request.prompt]
        self._asked += 1
        if self._asked >= self.stalls_at:
            self.stalled.set()
            return stall()
        if self.first_on and request.prompt not in self._seen:
            self._seen.add(request.prompt)
            return fail(503, "busy", {**self.names(self.first_on), "Retry-After": "0"})
        if server == self.broken and self.moves and request.prompt in self._seen:
            server = "decode-2:9"
        self._seen.add(request.prompt)
        if server == self.broken:
            return fail(500, "out of memory", self.names(server))
        told = {"id": f"request-{request.number}"}
        return answer(
            wrong if server == self.wrong else right, body=told, headers=self.names(server)
        )


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=8),
    )


def run(
    router,
    out,
    *more,
    environ=None,
    options=None,
    between=lambda: None,
):
    """Run the router's plan, then go on with each of `more`, and return the last report."""

    async def story():
        async with router.server.serve() as url:
            spec = Spec(name="external", options={"base_url": url, **(options or {})})
            here = [replace(one, launcher=spec) for one in (router.plan, *more)]
            report = await evaluate(here[0], out, environ=dict(environ or {}))
            for one in here[1:]:
                between()
                report = await evaluate(one, out, environ=dict(environ or {}))
            return report

    return asyncio.run(story())


def lines(out):
    return [json.loads(line) for line in (out / TRACE_FILE).read_text().splitlines()]


def accused(report):
    told = report.tasks[0].attribution
    return [
        (row.role, row.worker, row.measure, row.bad, row.answers)
        for row in told.rows
        if row.accused
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_server_that_answers_wrongly_is_named(plan, tmp_path, stream):
    asked = replace(plan, limits=Limits(concurrency=8, stream=stream))
    router = Router(asked, wrong=BAD)
    report = run(router, tmp_path)
    told = report.tasks[0].attribution
    assert (told.how, told.joined, told.planned) == (HEADERS, N, N)
    assert accused(report) == [("generation", BAD, "wrong answers", 20, 20)]
    assert {one["id"]: one["generation"] for one in lines(tmp_path)} == router.servers
    assert {(one["context"], one["how"]) for one in lines(tmp_path)} == {("prefill-0:9", HEADERS)}
    print_document(
        make_run_document(report, tmp_path),
        Console(file=(shown := io.StringIO()), width=200),
        verbose=True,
    )
    assert f"the server is known for {N} of {N} samples (identified by {HEADERS})" in (
        shown.getvalue()
    )
    assert f"generation server {BAD}: 20 of 20 wrong, the others 0 of 40" in shown.getvalue()
    [found] = [one for one in diagnose(tmp_path).runs[0].findings if one.rule == "worker"]
    assert found.told.startswith(f"generation {BAD}: 20 wrong answers of 20")
    assert f"worker identified by {HEADERS} for {N} of {N} samples" in found.told


def test_a_generation_server_that_fails_is_named_by_its_failures(plan, tmp_path):
    limits = Limits(concurrency=8, max_attempts=1, max_error_rate=1.0)
    report = run(Router(replace(plan, limits=limits), broken=BAD), tmp_path)
    assert accused(report) == [("generation", BAD, "failures", 20, 20)]
    assert report.tasks[0].result.failed == 20
    told = report.tasks[0].attribution
    assert told.joined == N


def test_a_server_whose_failures_a_retry_repairs_is_named(plan, tmp_path):
    report = run(Router(plan, broken=BAD, moves=True), tmp_path)
    assert report.tasks[0].result.failed == 0
    assert accused(report) == [("generation", BAD, "failed at first", 20, 20)]
    print_document(
        make_run_document(report, tmp_path),
        Console(file=(shown := io.StringIO()), width=200),
        verbose=True,
    )
    assert f"generation server {BAD}: 20 of 20 failed at first, the others 0 of 40" in (
        shown.getvalue()
    )
    [found] = [one for one in diagnose(tmp_path).runs[0].findings if one.rule == "worker"]
    assert found.told.startswith(f"generation {BAD}: 20 failed at first of 20, compared with 0 of")
    assert found.explains is None, "retries answered them"


def test_a_run_that_is_given_up_notes_the_servers_of_its_failures(plan, tmp_path):
    router = Router(replace(plan, limits=Limits(concurrency=8, max_attempts=1)), broken=BAD)
    with pytest.raises(EndpointError):
        run(router, tmp_path)
    assert {one["generation"] for one in lines(tmp_path)} >= {BAD}


def test_a_slow_generation_server_is_named(plan, tmp_path):
    router = Router(plan)
    report = run(router, tmp_path)
    path = tmp_path / "samples/gsm8k.jsonl"
    slower = []
    for one in journal.read(path):
        assert one.response is not None
        latency_s = 1.0 if router.servers[one.id] == BAD else 0.1
        slower.append(
            msgspec.structs.replace(
                one, response=msgspec.structs.replace(one.response, latency_s=latency_s)
            )
        )
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in slower))
    again = judge_again(report.plan, tmp_path)
    told = again.tasks[0].attribution
    assert [(row.role, row.worker) for row in told.times if row.slow] == [("generation", BAD)]
    assert any(
        line.startswith(f"slow_worker: generation server {BAD} takes 1")
        for line in again.tasks[0].verdict.warnings
    )


def test_a_retried_request_has_the_servers_of_its_last_attempt(plan, tmp_path):
    router = Router(replace(plan, limit=12), first_on="decode-7:9")
    report = run(router, tmp_path)
    assert {one["id"]: one["generation"] for one in lines(tmp_path)} == router.servers
    kept = [
        one.response.attempts
        for one in journal.read(tmp_path / "samples/gsm8k.jsonl")
        if one.response is not None
    ]
    assert [next(a.servers.generation for a in one if a.servers) for one in kept] == (
        ["decode-7:9"] * 12
    )
    told = report.tasks[0].attribution
    assert (told.joined, {one.worker for one in told.figures if one.role == "generation"}) == (
        12,
        set(router.servers.values()),
    )


@pytest.mark.parametrize(
    "names",
    [
        lambda server: {},
        lambda server: {"X-Generation-Server": f"{server}, {server}", "X-Context-Server": ""},
        lambda server: {"X-Generation-Server": server + "é"},
    ],
)
def test_a_run_without_sound_names_looks_as_before(plan, tmp_path, names):
    report = run(Router(replace(plan, limit=6), names=names), tmp_path)
    assert report.tasks[0].attribution is None
    assert not (tmp_path / TRACE_FILE).exists()
    assert b'"servers"' not in (tmp_path / "samples/gsm8k.jsonl").read_bytes()


def test_a_router_can_name_one_server_only(plan, tmp_path):
    router = Router(plan, wrong=BAD, names=lambda server: {"x-generation-server": server})
    assert accused(run(router, tmp_path)) == [("generation", BAD, "wrong answers", 20, 20)]
    assert {one["context"] for one in lines(tmp_path)} == {None}


def test_what_is_known_is_not_noted_again(plan, tmp_path):
    few = replace(plan, limit=6)
    before = []
    report = run(
        Router(few),
        tmp_path,
        replace(few, repeats=2),
        between=lambda: before.extend(lines(tmp_path)),
    )
    after = lines(tmp_path)
    assert (after[:6], len(after), len(before)) == (before, 12, 6)
    told = report.tasks[0].attribution
    assert (told.joined, told.planned) == (12, 12)


def test_names_win_against_what_is_found_otherwise(plan, tmp_path):
    """An orchestrator also lists each request once, with the id of its answer."""
    numbers, listed_before = count(1), []

    def names(server):
        return {} if server == "decode-2:9" else {"X-Generation-Server": server}

    def listed(request):
        told = [
            {"gen_server": "by-id:1", "ctx_perf_metrics": {"request_id": f"request-{number}"}}
            for number in islice(numbers, len(router.server.asked) - len(listed_before))
        ]
        listed_before.extend(told)
        return json_reply(told)

    routes = {
        "/cluster_info": json_reply({"is_ready": True}),
        "/perf_metrics": listed,
    }
    router = Router(replace(plan, limit=30), names=names, routes=routes)
    report = run(router, tmp_path)
    told = report.tasks[0].attribution
    assert (told.how, told.joined) == (f"{HEADERS} and {IDS}", 30)
    found = {one["id"]: (one["generation"], one["how"]) for one in lines(tmp_path)}
    assert len(lines(tmp_path)) == 30
    assert found == {
        name: ("by-id:1", IDS) if server == "decode-2:9" else (server, HEADERS)
        for name, server in router.servers.items()
    }


def test_names_answer_a_request_for_perf_metrics(plan, tmp_path):
    def names(server):
        return {
            "X-Generation-Server": server,
            "X-TRTLLM-Start-End-Time": "disagg-start;ts=1.5",
            "Server-Timing": "gen_kv_transfer;dur=1.25",
        }

    router = Router(replace(plan, limit=6), names=names)
    report = run(router, tmp_path, options={"perf_metrics": True})
    assert [(one["how"], one["kv_transfer_s"]) for one in lines(tmp_path)] == (
        [(HEADERS, 0.00125)] * 6
    )
    assert not [line for line in report.warnings if "perf metrics" in line]


def test_a_run_that_was_killed_at_its_end_notes_its_servers_without_asking(plan, tmp_path):
    few = replace(plan, limit=6)
    router = Router(few)
    report = run(router, tmp_path, few, between=(tmp_path / TRACE_FILE).unlink)
    assert {one["id"]: one["generation"] for one in lines(tmp_path)} == router.servers
    assert report.tasks[0].attribution is not None


def test_a_new_journal_is_read_only_for_names(plan, tmp_path, monkeypatch):
    read = []

    def note(*given):
        read.append(given)
        return []

    monkeypatch.setattr(trace, "_lines", note)
    few = replace(plan, limit=6)
    run(Router(few, names=lambda server: {}), tmp_path / "without")
    assert not read
    run(Router(few), tmp_path / "with")
    assert len(read) == 1


def test_a_killed_run_that_goes_on_joins_its_earlier_answers(plan, tmp_path):
    router = Router(replace(plan, limit=12), stalls_at=8)
    out = tmp_path / "run"
    with router.server.serve_in_thread() as url:
        options = ["--base-url", url, "-m", "m", "--no-reference", "--concurrency", "1"]
        options += ["--tasks", "gsm8k", "--set", "gsm8k.max_tokens=64", "--limit", "12"]
        options += ["--dataset-root", plan.dataset_roots[0], "-o", str(out)]
        command = [sys.executable, "-m", "serve_eval", "run", *options]
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            assert router.stalled.wait(60)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert not (out / TRACE_FILE).exists()
        router.stalls_at = sys.maxsize
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    kept = re.search(r"(\d+) of 12 answers are already there", done.stderr)
    assert 1 <= int(kept[1]) <= 7
    assert {one["id"]: one["generation"] for one in lines(out)} == router.servers
    assert len(lines(out)) == 12


def test_a_key_in_a_name_is_written_nowhere(plan, tmp_path):
    key = "sk-of-the-router-0123456789"
    router = Router(replace(plan, limit=3), names=lambda server: {"X-Context-Server": f"{key}:1"})
    run(router, tmp_path, environ={"OPENAI_API_KEY": key})
    assert [one["context"] for one in lines(tmp_path)] == ["***:1"] * 3
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or key.encode() not in path.read_bytes()


def _list_asked(run, plan):
    """Return the addresses that `serve-eval check workers` asks."""
    return [one.url for one in asyncio.run(prepare_asking(run, plan, environ={})).workers]


def test_servers_are_asked_separately_if_their_names_are_addresses(plan, tmp_path):
    report = run(Router(replace(plan, limit=6)), tmp_path)
    assert _list_asked(tmp_path, report.plan) == [
        "http://prefill-0:9/v1",
        *(f"http://decode-{i}:9/v1" for i in range(3)),
    ]


@pytest.mark.parametrize("name", ["decode-{}", "decode {}:9", "user:key@decode-{}:9", "a:{}:9"])
def test_names_that_are_no_addresses_are_not_asked(plan, tmp_path, name):
    def names(server):
        return {"X-Generation-Server": name.format(server.removesuffix(":9")[-1])}

    report = run(Router(replace(plan, limit=3), names=names), tmp_path)
    assert {one["generation"] for one in lines(tmp_path)} == {name.format(i) for i in range(3)}
    with pytest.raises(PlanError, match=r"no role has two known workers \(known: none\)"):
        _list_asked(tmp_path, report.plan)
    file = tmp_path / "environment.json"
    sessions = json.loads(file.read_text())
    launched = {f"generation_{i}": f"http://127.0.0.1:{i + 1}/v1" for i in range(2)}
    sessions[-1]["endpoint"]["info"]["servers"] = launched
    file.write_text(json.dumps(sessions))
    assert _list_asked(tmp_path, report.plan) == list(launched.values())
