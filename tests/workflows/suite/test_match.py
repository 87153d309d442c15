from __future__ import annotations

from typing import Any

import pytest

from serve_eval.schema import AccuracySpec, Plan, Spec, SuiteRun
from serve_eval.workflows.suite.suite_form import matches

RUN = SuiteRun(
    name="large-fp8",
    plan=Plan(
        model="org/large",
        launcher=Spec(name="external", options={"base_url": "http://host:8000/v1"}),
        tasks=(Spec(name="mmlu"), Spec(name="gsm8k")),
        accuracy_spec=AccuracySpec(quant_algo="FP8"),
    ),
    attributes={"size": 70, "moe": False},
)


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        ({"model": "org/large"}, True),
        ({"model": "org/Large"}, False),
        ({"model": ["org/small", "org/large"]}, True),
        ({"name": "large-fp8", "task": "mmlu"}, True),
        ({"name": "large-fp8", "task": "gsm8k"}, False),
        ({"task": ["gsm8k", "mmlu"]}, True),
        ({"endpoint": "host:8000"}, True),
        ({"endpoint": "http://host:8000/v1/completions"}, True),
        ({"endpoint": "external"}, True),
        ({"endpoint": ["simulated", "host:8001"]}, False),
        ({"accuracy_spec": {"quant_algo": "FP8"}}, True),
        ({"accuracy_spec": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, True),
        ({"accuracy_spec": {"quant_algo": None}}, False),
        ({"accuracy_spec": {"dtype": "auto"}}, True),
        ({"attributes": {"size": "70"}}, True),
        ({"attributes": {"size": 70, "moe": False}}, True),
        ({"attributes": {"size": 7}}, False),
        ({"attributes": {"colour": "None"}}, False),
        ({"model": "org/large", "attributes": {"moe": True}}, False),
    ],
)
def test_every_key_of_a_pattern_must_hold(pattern: dict[str, Any], held: bool) -> None:
    assert matches(pattern, RUN, "mmlu") is held


def test_without_a_task_only_the_run_is_asked_about() -> None:
    assert matches({"task": "gpqa", "model": "org/large"}, RUN)
    assert not matches({"task": "gpqa", "model": "org/small"}, RUN)
