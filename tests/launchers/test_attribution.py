"""Test attribution with two context and four generation servers, one of them corrupt.

A run names the corrupt server, and so does a check of each worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.endpoint.launch import _write_answers, launch
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Attributed, Plan, Report, Spec
from serve_eval.workflows.attribute import attribute

pytestmark = pytest.mark.slow

OPTIONS = {
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
def test_a_corrupt_generation_server_of_four_is_named_and_sound_ones_are_not(
    standin: Callable[..., None], plan_of: Callable[..., Plan], tmp_path: Path, corrupt: bool
) -> None:
    plan = plan_of("trtllm_disaggregated", OPTIONS, limit=200, concurrency=8)
    plan = replace(plan, tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),))
    _write_answers(tmp_path / "answers.jsonl", prepare(plan), lambda task, sample: 0.9)
    faults = [*TAKES, CORRUPT if corrupt else SOUND]
    standin("v12", faults, STANDIN_ANSWERS=str(tmp_path / "answers.jsonl"))

    async def story() -> tuple[Report, Attributed, str]:
        out = tmp_path / "run"
        async with launch(plan, prepare(plan), tmp_path) as endpoint:
            report = await evaluate(
                plan, out, environ={}, launching=lambda *_: nullcontext(endpoint)
            )
            asking = await attribute.prepare_asking(out, plan, samples=20, environ={})
            servers = endpoint.info.servers
            assert isinstance(servers, dict)
            return (
                report,
                await attribute.attribute(out, asking, environ={}),
                servers["generation_2"],
            )

    report, done, url = asyncio.run(story())
    told = report.tasks[0].attribution
    assert told is not None
    assert told.joined > 50
    assert done.in_pairs is not None
    named = [
        {row.worker for row in part.rows if row.accused}
        for part in (told, done.alone, done.in_pairs)
    ]
    guilty = [{url.removeprefix("http://")}, {f"{url}/v1"}, {f"{url}/v1"}]
    assert named == (guilty if corrupt else [set(), set(), set()])
