"""Who answered what on a saturated deployment of 2 + 2 servers: exactly on main, hardly at all by times."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.endpoint import launch
from serve_eval.evaluation import evaluate
from serve_eval.joining import METRICS, TIMES, TRACES
from serve_eval.preparation import prepare
from serve_eval.schema import Endpoint, Plan, Report
from tests.standin.options import Flavour

pytestmark = pytest.mark.slow

N = 400
IN_FLIGHT = 64
OPTIONS = {
    "perf_metrics": True,
    "context_servers": {"num_instances": 2},
    "generation_servers": {"num_instances": 2},
    "ready_timeout_s": 60.0,
}


def run(plan: Plan, out: Path, seen: Callable[[Endpoint], Endpoint] = lambda one: one) -> tuple[Report, Endpoint]:
    """Return the report of a run and its endpoint, which `seen` may change before."""

    async def story() -> tuple[Report, Endpoint]:
        async with launch(plan, prepare(plan), out.parent) as endpoint:
            known = seen(endpoint)
            return await evaluate(plan, out, environ=os.environ, launching=lambda *_: nullcontext(known)), known

    return asyncio.run(story())


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "served.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_every_request_of_a_saturated_deployment_is_joined_on_main(
    standin: Callable[..., None],
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    flavour: Flavour,
    stream: bool,
) -> None:
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
    assert told is not None
    assert (told.how, told.joined) == (METRICS, N)
    servers = endpoint.info["servers"]
    assert isinstance(servers, Mapping)
    by_name = {url.removeprefix("http://"): name for name, url in servers.items()}
    found = lines(tmp_path / "run")
    assert Counter(by_name[one["context"]] for one in found) == {"context_0": N / 2, "context_1": N / 2}
    assert {by_name[one["generation"]] for one in found} == {"generation_0", "generation_1"}
    assert all(one["kv_transfer_s"] > 0 for one in found)
    assert not any("perf metrics" in line for line in report.warnings)
