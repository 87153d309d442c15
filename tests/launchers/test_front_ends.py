"""Servers and orchestrators whose port several processes share: started, and read as what they are.

Each process has counters of its own, so that no reading of one is the server's.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.errors import LaunchError
from serve_eval.evaluation.endpoint.launch import launch
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence import engine_counters
from serve_eval.evidence.engine_counters import MANY, Companions, begin, end, remarks
from serve_eval.evidence.path_facts import NamedLegs, PathFacts
from serve_eval.evidence.path_proof import judge_kv_transfer
from serve_eval.launchers import trtllm, trtllm_disaggregated
from serve_eval.schema import Endpoint, EngineReport, LaunchContext, Limits, Plan, Report
from tests.launchers.processes import gone
from tests.launchers.test_versions import complete, start
from tests.standin.in_process import deployed

Standin = Callable[..., None]
REQUESTS = 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"config": {"num_serve_frontends": 2}},
        {"extra_args": ["--num_serve_frontends", "2"]},
    ],
)
def test_a_server_with_two_front_ends_starts_however_they_are_set(
    options: dict[str, Any], context: LaunchContext, standin: Standin
) -> None:
    standin("main")
    endpoint = start(trtllm, context, **options)
    assert "--report_addr" not in endpoint.info.commands[0]
    assert endpoint.info.front_ends == {"trtllm": 2}


def read_processes(log: Path, count: int) -> list[int]:
    """Return the processes that say in a log that they began, once there are that many."""
    deadline = time.monotonic() + 20
    while len(parts := log.read_text().split("Started server process [")[1:]) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return [int(part.split("]")[0]) for part in parts]


@pytest.mark.slow
def test_an_orchestrator_of_two_processes_starts_answers_and_leaves_nothing(
    context: LaunchContext, standin: Standin
) -> None:
    standin("main")

    async def ask(endpoint: Endpoint) -> tuple[list[int], Endpoint]:
        for _ in range(8):
            await complete(endpoint)
        pids = await asyncio.to_thread(read_processes, context.log_dir / "orchestrator.log", 3)
        return pids, endpoint

    pids, endpoint = start(trtllm_disaggregated, context, ask, orchestrator={"num_workers": 2})
    assert len(set(pids)) == 3  # the coordinator and its two
    assert all(gone(pid) for pid in pids)
    assert endpoint.info.front_ends == {"orchestrator": 2}


@pytest.mark.slow
def test_the_port_of_the_coordinator_must_be_free(context: LaunchContext, standin: Standin) -> None:
    standin("main")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        below: int = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"orchestrator: 127.0.0.1:{below} cannot be used"):
            start(trtllm_disaggregated, context, orchestrator={"num_workers": 2}, port=below + 1)


def counted(front_ends: int, *, told: bool = False) -> EngineReport:
    """Return the counts of two workers over some requests; `told`: their launcher names them."""

    async def main() -> EngineReport:
        async with deployed(1, 1, flavour="main", front_ends=front_ends, greeted=False) as found:
            info: dict[str, Any] = {"version": "1.3.0", "servers": found.workers}
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


def test_counters_of_one_front_end_are_those_of_the_server() -> None:
    report = counted(1)
    assert [one.counts and one.counts.requests for one in report.servers] == [REQUESTS] * 2


@pytest.mark.parametrize("told", [True, False])
def test_counters_of_several_front_ends_are_no_evidence(told: bool) -> None:
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


def test_two_front_ends_are_missed_in_few_cases() -> None:
    """Of the sequences of two values, as many as there are readings and one more never fall."""
    never_fall = engine_counters.READS + 1
    assert never_fall / 2**engine_counters.READS < 0.005


@pytest.mark.slow
def test_requests_prove_the_path_behind_an_orchestrator_of_several_processes(
    standin: Standin, plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    standin("main")
    options: dict[str, Any] = {"gpus": [0, 1], "perf_metrics": True}
    options["orchestrator"] = {"num_workers": 2}
    options |= {
        side: {"config": {"num_serve_frontends": 2}}
        for side in ("context_servers", "generation_servers")
    }
    plan = plan_of("trtllm_disaggregated", options, limit=20)

    async def story() -> Report:
        async with launch(plan, prepare(plan), tmp_path) as endpoint:
            return await evaluate(
                plan, tmp_path / "run", environ={}, launching=lambda *_: nullcontext(endpoint)
            )

    report = asyncio.run(story())
    attribution = report.tasks[0].attribution
    assert attribution is not None
    assert attribution.joined == 20
    assert not [line for line in report.warnings if "other clients" in line]
    [transfer] = [one for one in report.path if one.claim == "kv_transfer"]
    assert transfer.state.value == "proven", transfer
