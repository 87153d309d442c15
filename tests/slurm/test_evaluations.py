"""Test evaluations submitted to a real SLURM, with the stand-in for trtllm-serve on two nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.slurm.cluster import NODES, missing

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from tests.slurm.conftest import Site

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

BARE = {"wrapper": ""}
WRAPPED = {"wrapper": "trtllm-llmapi-launch"}
SHOWN = {"command": "shown-trtllm-serve"}
SIDES = {
    "context_servers": {"num_instances": 2, "tp": 2},
    "generation_servers": {"num_instances": 2, "tp": 2},
    **SHOWN,
}
FIRST, SECOND = NODES
SPREAD = {
    "context_0": (FIRST, "0,1"),
    "context_1": (FIRST, "2,3"),
    "generation_0": (SECOND, "0,1"),
    "generation_1": (SECOND, "2,3"),
    "orchestrator": (FIRST, None),
}
CASES = [
    pytest.param({"trtllm": SHOWN, **BARE}, {"trtllm": (FIRST, "0")}, id="one server"),
    pytest.param(
        {"trtllm": {"tp": 2, **SHOWN}, **WRAPPED},
        {"trtllm": (FIRST, "0,1")},
        id="two ranks, wrapped",
    ),
    pytest.param(
        {"trtllm": {"tp": 4, "pp": 2, **SHOWN}}, {"trtllm": (FIRST, "0,1,2,3")}, id="two nodes"
    ),
    pytest.param(
        {"trtllm_disaggregated": SHOWN, **BARE},
        {"context_0": (FIRST, "0"), "generation_0": (FIRST, "1"), "orchestrator": (FIRST, None)},
        id="1+1, no wrapper",
    ),
    pytest.param(
        {"trtllm_disaggregated": {"discovery": True, "generation_servers": {"tp": 4}, **SHOWN}},
        {
            "context_0": (FIRST, "0"),
            "generation_0": (SECOND, "0,1,2,3"),
            "orchestrator": (FIRST, None),
        },
        id="1+1 on two nodes, discovery",
    ),
    pytest.param({"trtllm_disaggregated": SIDES, **WRAPPED}, SPREAD, id="2+2, wrapped"),
    pytest.param(
        {"trtllm_disaggregated": {**SIDES, "discovery": True}}, SPREAD, id="2+2, discovery"
    ),
]


def report(site: Site) -> Any:
    return json.loads((site.out / "report.json").read_text())


@pytest.mark.parametrize(("launcher", "where"), CASES)
def test_a_job_script_that_evaluates(
    site: Site, launcher: dict[str, Any], where: dict[str, tuple[str, str | None]]
) -> None:
    job = site.submit(site.script(site.command("run", str(site.plan(launcher)))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    (task,) = report(site)["tasks"]
    assert (task["result"]["scored"], task["result"]["value"], task["verdict"]["outcome"]) == (
        80,
        75.0,
        "PASS",
    )
    servers = report(site)["endpoint"]["info"]["servers"]
    assert {name: url.split(":")[1].strip("/") for name, url in servers.items()} == {
        n: w[0] for n, w in where.items()
    }
    for name, (_, gpus) in where.items():
        log = (site.out / f"logs/{name}.log").read_text()
        assert f"given: GPU {gpus or '0,1,2,3'}, 0 variables of SLURM or MPI" in log
    assert "are left" not in site.output(job)
    assert not site.servers()


def test_ranks_are_tasks_of_pmix_on_both_nodes(site: Site) -> None:
    job = site.submit(site.script(site.command("run", str(site.plan({"trtllm": {"tp": 8}})))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    log = (site.out / "logs/trtllm.log").read_text()
    for rank in range(8):
        node = NODES[rank // 4]
        assert f"{rank}: rank {rank} of 8 on {node}, GPUs 0,1,2,3, PMIx rank {rank}" in log
