"""Test launched stand-ins from their start, also behind one port, to a verdict.

Launchers and stand-in were written independently from the same facts about trtllm-serve.

The pairs: a sound one, one with a bad worker of two, one that does not fit, and one whose worker
loses the cache that it receives. tests/detectors has more faults, in one process.

Each process has counters of its own, so that no reading of one is the server's.
"""

import asyncio
import json
import math
import socket
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.client.client import Client
from serve_eval.errors import LaunchError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import launch
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence import engine_counters
from serve_eval.evidence.engine_counters import MANY, Companions, begin, end, remarks
from serve_eval.evidence.path_facts import NamedLegs, PathFacts
from serve_eval.evidence.path_proof import judge_kv_transfer
from serve_eval.launchers import external, trtllm, trtllm_disaggregated
from serve_eval.launchers._fleet import readiness
from serve_eval.launchers._fleet.loading import says_so
from serve_eval.launchers._standin.serving import HEADERS
from serve_eval.plugins import registry
from serve_eval.schema import (
    Endpoint,
    LaunchContext,
    Limits,
    Plan,
    Spec,
    VerdictOutcome,
)
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.launchers.conftest import gone
from tests.launchers.test_versions import complete, start
from tests.scripted_server import EVERY_PATH, ScriptedServer, answer, fail
from tests.standin.deployments import deployed, write_answers

CONTEXT = LaunchContext(model="m", log_dir=Path("logs"))


class _Reply:
    def __init__(self, status, headers):
        self.status_code, self.headers = status, headers


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (503, HEADERS, True),
        (503, {"x-trtllm-server-state": " Starting"}, True),
        (503, {"x-trtllm-server-state": "ready"}, False),
        (503, {}, False),
        (200, HEADERS, False),
    ],
)
def test_only_a_503_with_that_header_says_so(status, headers, said):
    assert says_so(_Reply(status, headers)) is said


STARTING = fail(503, headers=HEADERS)


def _server(left):
    """Return a server that reports its start `left` times, on any route."""
    return ScriptedServer(
        lambda request: STARTING if request.number <= left else fail(404), paths=EVERY_PATH
    )


@pytest.mark.parametrize("left", [0, 2])
async def test_an_endpoint_that_runs_already_is_waited_for(left, monkeypatch):
    monkeypatch.setattr(external, "POLL_S", 0.01)
    async with (
        _server(left).serve() as url,
        external.launch(CONTEXT, external.ExternalOptions(base_url=url, ready_timeout_s=20.0)),
    ):
        pass


def test_an_endpoint_that_goes_on_starting_is_no_endpoint():
    async def story():
        async with (
            _server(math.inf).serve() as url,
            external.launch(CONTEXT, external.ExternalOptions(base_url=url, ready_timeout_s=0.1)),
        ):
            pass

    with pytest.raises(
        LaunchError, match=r"does not answer within 0\.1 s: it reports that it is starting"
    ):
        asyncio.run(story())


@pytest.mark.slow
async def test_a_launched_server_says_that_it_is_starting(
    context,
    said,
    standin,
    monkeypatch,
):
    monkeypatch.setattr(readiness, "TELL_S", 0.2)
    standin("main", STANDIN_LOAD_S="1.5", STANDIN_STARTING="1")
    options = registry.check_options(
        trtllm.launch, {"gpus": [0], "ready_timeout_s": 30.0}, "launcher"
    )
    async with trtllm.launch(context, trtllm.TrtllmOptions(**options)):
        pass
    assert any(", it reports that it is starting; its log: " in line for line in said)


def test_the_first_completion_is_not_given_up_while_the_front_door_starts(
    monkeypatch,
):
    """The limit is for an engine that hangs."""
    monkeypatch.setattr(readiness, "POLL_S", 0.02)
    until = time.monotonic() + 0.4

    server = ScriptedServer(lambda request: STARTING if time.monotonic() < until else answer("x"))

    async def story(start_timeout_s):
        import httpx

        from serve_eval.launchers._trtllm.command_line import Place, Server

        async with server.serve() as url, httpx.AsyncClient(trust_env=False) as client:
            place = Place(host="127.0.0.1", port=int(url.split(":")[2].removesuffix("/v1")))
            front = Server(name="front", argv=("x",), probe=("x",), place=place)
            await readiness._wait_for_answer(
                client, [], front, "m", 0.2, said.append, start_timeout_s=start_timeout_s
            )

    said = []
    asyncio.run(story(20.0))
    assert said[-1].startswith("front: the first completion took ")


MODEL = "my-org/my-model"
TWICE = {"context_servers": {"num_instances": 2}, "generation_servers": {"num_instances": 2}}
CASES = [
    pytest.param("v12", "trtllm", {}),
    pytest.param("main", "trtllm", {}),
    pytest.param("v12", "trtllm_disaggregated", {}),
    pytest.param("main", "trtllm_disaggregated", {}),
    pytest.param("v12", "container", {"trtllm": {}}),
    pytest.param(
        "main",
        "container",
        {"trtllm_disaggregated": {"discovery": True, **TWICE}},
        marks=pytest.mark.slow,
    ),
    *(
        pytest.param(
            flavour,
            "trtllm_disaggregated",
            {"discovery": discovery, **many},
            marks=pytest.mark.slow,
        )
        for flavour in ("v12", "main")
        for discovery in (False, True)
        for many in ({}, TWICE)
    ),
]


@pytest.mark.parametrize(("flavour", "launcher", "options"), CASES)
async def test_an_evaluation_of_servers_that_were_started_for_it(
    data_root,
    tmp_path,
    standin,
    request,
    flavour,
    launcher,
    options,
):
    if launcher == "container":
        request.getfixturevalue("engine")
        options = {
            "image": "image:1",
            "pass_env": ["STANDIN_FLAVOUR", "STANDIN_ANSWERS"],
            **options,
        }
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/gsm8k.yaml").write_text(f"{MODEL}: [{{accuracy: 75}}]\n")
    plan = Plan(
        model=MODEL,
        launcher=Spec(name=launcher, options=options),
        tasks=(Spec(name="gsm8k", options={"num_samples": 80}),),
        dataset_roots=(str(data_root),),
        references_dir=str(tmp_path / "refs"),
    )
    answers = write_answers(plan, tmp_path / "answers.jsonl")
    standin(flavour, STANDIN_ANSWERS=str(answers))
    report = await evaluate(plan, tmp_path / "out")
    (task,) = report.tasks
    assert (task.result.scored, task.result.value, task.verdict.outcome) == (
        80,
        75.0,
        VerdictOutcome.PASS,
    )


SECOND = {"when": {"command": "serve", "gpus": "2"}}
BAD = {
    "one-bad-worker": {"corrupt_after": 0},
    "wrong-pair": {"wrong_pair": {"gpus": "0"}},
    "lost": {"kv_loss_after": 0},
}
CASES_COMPARED = [
    ("sound", None, "PASS"),
    *((name, [{**fault, **SECOND}], "FAIL") for name, fault in BAD.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "faults", "outcome"), CASES_COMPARED, ids=[name for name, _, _ in CASES_COMPARED]
)
async def test_a_deployment_beside_the_one_that_it_replaces(
    data_root,
    tmp_path,
    standin,
    name,
    faults,
    outcome,
):
    plan = Plan(
        model="my-org/my-model",
        launcher=Spec(name="trtllm", options={"gpus": [3]}),
        tasks=(Spec(name="gsm8k", options={"num_samples": 80}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
        limits=Limits(concurrency=8),
    )
    standin("v12", faults, STANDIN_ANSWERS=str(write_answers(plan, tmp_path / "answers.jsonl")))
    workers = {"gpus": [0, 1, 2], "generation_servers": {"num_instances": 2}}
    split = replace(plan, launcher=Spec(name="trtllm_disaggregated", options=workers))
    rules = CompareRules(rule=Spec(name="paired"), again=80)
    found = await compare(CompareSide(plan=plan), CompareSide(plan=split), rules, tmp_path / "out")
    [task] = found.tasks
    assert task.verdict.outcome == outcome
    assert task.a.value == 75.0
    assert task.itself.own == 0
    assert task.itself.more is (outcome == "FAIL")
    assert set(found.a.servers) == {"server"}
    assert set(found.b.servers) == {"orchestrator", "context servers", "generation servers"}
    assert found.b.servers["generation servers"].startswith("2: version")
    assert found.b.hidden_retries == {"context": 0, "generation": 0}
    if outcome == "FAIL":  # every second request went to the bad worker
        assert 15 <= task.worse <= 45
        assert task.better == 0
        assert (task.b.outcomes.get("empty", 0) >= task.worse) is (name == "lost")


REQUESTS = 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"config": {"num_serve_frontends": 2}},
        {"extra_args": ["--num_serve_frontends", "2"]},
    ],
)
def test_a_server_with_two_front_ends_starts_however_they_are_set(options, context, standin):
    standin("main")
    endpoint = start(trtllm, context, **options)
    assert "--report_addr" not in endpoint.info.commands[0]
    assert endpoint.info.front_ends == {"trtllm": 2}


def read_processes(log, count):
    """Return the processes that say in a log that they began, once there are that many."""
    deadline = time.monotonic() + 20
    while len(parts := log.read_text().split("Started server process [")[1:]) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return [int(part.split("]")[0]) for part in parts]


@pytest.mark.slow
def test_an_orchestrator_of_two_processes_starts_answers_and_leaves_nothing(context, standin):
    standin("main")

    async def ask(endpoint):
        for _ in range(8):
            await complete(endpoint)
        pids = await asyncio.to_thread(read_processes, context.log_dir / "orchestrator.log", 3)
        return pids, endpoint

    pids, endpoint = start(trtllm_disaggregated, context, ask, orchestrator={"num_workers": 2})
    assert len(set(pids)) == 3  # the coordinator and its two
    assert all(gone(pid) for pid in pids)
    assert endpoint.info.front_ends == {"orchestrator": 2}


@pytest.mark.slow
def test_the_port_of_the_coordinator_must_be_free(context, standin):
    standin("main")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        below = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"orchestrator: 127.0.0.1:{below} cannot be used"):
            start(trtllm_disaggregated, context, orchestrator={"num_workers": 2}, port=below + 1)


def counted(front_ends, *, told=False):
    """Return the counts of two workers over some requests; `told`: their launcher names them."""

    async def main():
        async with deployed(1, 1, flavour="main", front_ends=front_ends, greeted=False) as found:
            info = {"version": "1.3.0", "servers": found.workers}
            info |= {"front_ends": dict.fromkeys(found.workers, front_ends)} if told else {}
            endpoint = Endpoint(base_url=found.url, model="M", info=info)
            async with Client(endpoint, Limits()) as client:
                companions = Companions()
                meter = await begin(endpoint, client, 0, companions)
                assert meter is not None
                body = json.dumps({"model": "M", "prompt": "Hi", "max_tokens": 4}).encode()
                for _ in range(REQUESTS):
                    await client.exchange("POST", "/v1/completions", body)
                return await end(meter, endpoint, client, REQUESTS, companions)

    return asyncio.run(main())


def test_counters_of_one_front_end_are_those_of_the_server():
    report = counted(1)
    assert [one.counts and one.counts.requests for one in report.servers] == [REQUESTS] * 2


@pytest.mark.parametrize("told", [True, False])
def test_counters_of_several_front_ends_are_no_evidence(told):
    """Eight front ends are seen by their readings, also where nobody names them."""
    report = counted(8, told=told)
    assert [(one.counts, one.lost) for one in report.servers] == [(None, MANY)] * 2
    found = remarks([report])
    assert len(found) == 2
    assert all(line.endswith(f"counted is not known: {MANY}") for line in found)
    facts = PathFacts(servers=report.servers, answered=REQUESTS)
    assert judge_kv_transfer(facts).state.value == "unknown"
    legs = NamedLegs(generation=REQUESTS, context=REQUESTS, moved=REQUESTS)
    assert judge_kv_transfer(replace(facts, legs=legs)).state.value == "proven"


def test_two_front_ends_are_missed_in_few_cases():
    """Of the sequences of two values, as many as there are readings and one more never fall."""
    never_fall = engine_counters.READS + 1
    assert never_fall / 2**engine_counters.READS < 0.005


@pytest.mark.slow
async def test_requests_prove_the_path_behind_an_orchestrator_of_several_processes(
    standin, plan_of, tmp_path
):
    standin("main")
    options = {"gpus": [0, 1], "perf_metrics": True}
    options["orchestrator"] = {"num_workers": 2}
    options |= {
        side: {"config": {"num_serve_frontends": 2}}
        for side in ("context_servers", "generation_servers")
    }
    plan = plan_of("trtllm_disaggregated", options, limit=20)
    async with launch(plan, prepare(plan), tmp_path) as endpoint:
        report = await evaluate(
            plan, tmp_path / "run", environ={}, launching=lambda *_: nullcontext(endpoint)
        )
    attribution = report.tasks[0].attribution
    assert attribution.joined == 20
    assert not [line for line in report.warnings if "other clients" in line]
    [transfer] = [one for one in report.path if one.claim == "kv_transfer"]
    assert transfer.state.value == "proven", transfer
