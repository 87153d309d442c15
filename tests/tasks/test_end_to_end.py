"""Test every task against the simulated endpoint.

Prompts, HTTP and scoring are real; the data is ours.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan, Spec
from tests.tasks.made_data import NAMES, spec_of

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.mark.parametrize(("accuracy", "value"), [(1.0, 100.0), (0.0, 0.0)])
def test_an_endpoint_that_is_always_right_has_full_marks_and_one_that_never_is_none(
    data_root: Path, tmp_path: Path, accuracy: float, value: float
) -> None:
    plan = Plan(
        model="simulated",
        launcher=Spec(
            name="simulated",
            options={"accuracy": accuracy, "strict_fields": True, "prompt_logprobs": "echo"},
        ),
        tasks=tuple(spec_of(name, data_root) for name in NAMES),
        dataset_roots=(str(data_root),),
        limit=6,
        no_reference=True,
    )
    report = asyncio.run(evaluate(plan, tmp_path / "out", environ={}))
    assert [task.result.task.partition(":")[0] for task in report.tasks] == NAMES
    for task in report.tasks:
        assert (task.result.scored, task.result.failed) == (6, 0), task.result
        if task.result.metric.hi is not None:
            assert task.result.value == value, task.result
        elif task.result.metric.name == "wer":
            assert task.result.value == 100.0 - value, task.result
        else:  # perplexity of 0.5 and of 3 nats per token
            assert task.result.value == pytest.approx(math.exp(0.5 if accuracy else 3.0)), (
                task.result
            )
