"""Test the comparison of an aggregated with a disaggregated deployment, both launched.

The pairs: a sound one, one with a bad worker of two, one that does not fit, and one whose worker
loses the cache that it receives. tests/detectors has more faults, in one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.standin.answers import write_answers

SECOND = {"when": {"command": "serve", "gpus": "2"}}
BAD = {
    "one-bad-worker": {"corrupt_after": 0},
    "wrong-pair": {"wrong_pair": {"gpus": "0"}},
    "lost": {"kv_loss_after": 0},
}
CASES = [
    ("sound", None, "PASS"),
    *((name, [{**fault, **SECOND}], "FAIL") for name, fault in BAD.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "faults", "outcome"), CASES, ids=[name for name, _, _ in CASES])
def test_a_deployment_beside_the_one_that_it_replaces(
    data_root: Path,
    tmp_path: Path,
    standin: Callable[..., None],
    name: str,
    faults: Any,
    outcome: str,
) -> None:
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
    found = asyncio.run(
        compare(CompareSide(plan=plan), CompareSide(plan=split), rules, tmp_path / "out")
    )
    [task] = found.tasks
    assert task.verdict.outcome == outcome
    assert task.a.value == 75.0
    assert task.itself is not None
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
