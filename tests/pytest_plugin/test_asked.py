"""Test the plan of a test: class, markers and call over the plan of all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.pytest_plugin import AccuracyTests
from serve_eval.pytest_plugin.asked import build_plan, merge_levels, read_base
from serve_eval.schema import AccuracySpec, Plan, Spec

CLASS = {"model_name": "my-org/my-model", "launcher": "embedded"}


def _build(
    *levels: dict[str, Any], base: dict[str, Any] | None = None, base_url: str | None = None
) -> Plan:
    return build_plan(merge_levels(["word_problems"], *levels), base or {}, base_url, {})


def test_the_call_overrides_markers_the_class_and_the_plan_of_all_tests() -> None:
    plan = _build(
        CLASS,
        {"limit": 20, "quant_algo": "FP8", "temperature": 0.5},
        {"limit": 10, "launcher_options": {"damage": "int8"}, "concurrency": 3},
        base={"limit": 5, "seed": 7, "launcher": "external", "base_url": "other:1"},
    )
    assert plan.launcher == Spec(name="embedded", options={"damage": "int8"})
    assert (plan.model, plan.reference_model) == ("my-org/my-model", "my-org/my-model")
    assert (plan.limit, plan.seed, plan.limits.concurrency) == (10, 7, 3)
    assert plan.accuracy_spec == AccuracySpec(quant_algo="FP8")
    assert plan.tasks == (Spec(name="word_problems", options={"temperature": 0.5}),)


def test_options_of_the_launcher_are_joined_over_all_levels() -> None:
    launcher = {"name": "embedded", "cache_blocks": 4}
    plan = _build(
        {**CLASS, "launcher": launcher},
        {"launcher_options": {"damage": "int8", "host_blocks": 2}},
        {"launcher_options": {"damage": "int3"}},
    )
    assert plan.launcher.options == {"cache_blocks": 4, "damage": "int3", "host_blocks": 2}


@pytest.mark.parametrize("named", [{}, {"launcher": "external"}])
def test_an_address_of_a_test_replaces_the_launcher_of_its_class(named: dict[str, str]) -> None:
    plan = _build(CLASS, {"base_url": "host:9", **named}, base_url="other:1")
    assert plan.launcher == Spec(name="external", options={"base_url": "http://host:9/v1"})
    assert plan.reference_model == "my-org/my-model"


def test_a_test_without_a_launcher_asks_the_endpoint_of_the_options() -> None:
    plan = _build({"model_name": "my-model", "launcher": None}, base_url="host:9")
    assert plan.launcher.options == {"base_url": "http://host:9/v1"}
    # The endpoint reports the name that it serves; the reference is that of the test.
    assert (plan.model, plan.reference_model) == (None, "my-model")


def test_the_checkpoint_is_the_option_model_of_launchers_that_have_one() -> None:
    plan = _build({**CLASS, "launcher": "trtllm", "model_path": "/models/m"})
    assert plan.launcher.options == {"model": "/models/m"}
    with pytest.raises(PlanError, match="embedded has no option `model`"):
        _build({**CLASS, "model_path": "/models/m"})


def test_all_wrong_options_are_reported_at_once() -> None:
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"limt": 3, "quant_algos": "FP8", "launcher_options": {"damge": "int3"}})
    assert [problem.partition(":")[0] for problem in raised.value.problems] == [
        "limt",
        "quant_algos",
        "launcher.damge",
    ]


def test_the_plan_of_all_tests_is_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("- dataset_root")
    with pytest.raises(PlanError, match="expected a mapping of keys"):
        read_base(file)


def test_none_takes_back_what_the_class_or_the_plan_of_all_tests_says() -> None:
    base = {"launcher": "simulated", "limit": 5}
    plan = _build({**CLASS, "limit": 20}, {"launcher": None}, base=base, base_url="host:9")
    assert plan.launcher == Spec(name="external", options={"base_url": "http://host:9/v1"})
    assert (plan.reference_model, plan.limit) == ("my-org/my-model", 20)
    plan = _build({**CLASS, "limit": 20}, {"launcher": None}, {"launcher": "embedded"}, base=base)
    assert plan.launcher == Spec(name="embedded")
    assert _build({**CLASS, "limit": 20}, {"limit": None}, base=base).limit is None
    plan = _build({"base_url": "class:1"}, {"launcher": None}, base=base, base_url="host:9")
    assert plan.launcher.options == {"base_url": "http://class:1/v1"}


def test_an_attribute_of_the_class_that_is_not_set_leaves_the_plan_of_all_tests() -> None:
    plan = _build(AccuracyTests().list_defaults(), base={"launcher": "embedded"}, base_url="host:9")
    assert plan.launcher == Spec(name="embedded")


@pytest.mark.parametrize("task", ["word_problems", {"word_problems": {"max_tokens": 3}}])
def test_an_option_of_a_task_is_told_in_the_form_that_works(task: Any) -> None:
    with pytest.raises(PlanError) as raised:
        build_plan(merge_levels([task], CLASS, {"num_samples": 50, "shots": 5}), {}, None, {})
    told, other = raised.value.problems
    form = '{"word_problems": {"num_samples": 50}}'
    assert told == f"num_samples: an option of the task: evaluate({form}) or limit=N"
    assert "num_fewshot" in other
    plan = build_plan(merge_levels([json.loads(form)], CLASS), {}, None, {})
    assert plan.tasks == (Spec(name="word_problems", options={"num_samples": 50}),)


def test_a_misspelt_number_of_tokens_is_no_key() -> None:
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"max_token": 50, "api_key": "x", "hf_token": "x"})
    problems = dict(one.split(": ", 1) for one in raised.value.problems)
    assert problems["max_token"] == "unknown option. Did you mean 'max_tokens'?"
    for name in ("api_key", "hf_token"):
        assert problems[name].startswith("keys are read from the environment only")


def test_a_misspelt_number_of_samples_names_the_limit_and_the_option_of_the_task() -> None:
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"num_sample": 50})
    [told] = raised.value.problems
    assert told == (
        "num_sample: unknown option. Did you mean 'num_samples', an option of the task:"
        ' evaluate({"word_problems": {"num_samples": 50}}) or limit=N?'
    )


def test_a_number_of_samples_is_told_to_be_the_limit() -> None:
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"samples": 50})
    [told] = raised.value.problems
    assert told == "samples: expected ids of samples, not 50; to ask any 50 samples, use limit"


@pytest.mark.parametrize("more", [{}, {"model_path": "/models/m"}])
@pytest.mark.parametrize("address", ["host:9", None])
def test_options_that_no_launcher_takes_are_an_error(
    more: dict[str, str], address: str | None
) -> None:
    given = {"launcher_options": {"damage": "int3", "ready_timeout_s": 5}, "limt": 3}
    with pytest.raises(PlanError) as raised:
        _build({"model_name": "m", **more}, given, base_url=address)
    told = raised.value.problems[-1]
    assert told.startswith("launcher_options: no launcher is named that takes damage")
    assert ("host:9" in told) == (address is not None)
    assert raised.value.problems[0].startswith("limt: ")
    with pytest.raises(PlanError, match="no launcher is named") as alone:
        _build(CLASS, {"base_url": "host:9", "launcher_options": {"prt": 5}})
    assert "LAUNCHER" in str(alone.value.hint)


def test_options_of_a_running_endpoint_need_no_launcher() -> None:
    plan = _build({"launcher_options": {"ready_timeout_s": 5}}, base_url="host:9")
    wanted = {"ready_timeout_s": 5, "base_url": "http://host:9/v1"}
    assert plan.launcher == Spec(name="external", options=wanted)


@pytest.mark.parametrize(
    "named",
    ["embedded", {"name": "embedded", "cache_blocks": 4}, {"embedded": {"cache_blocks": 4}}],
)
@pytest.mark.parametrize("in_file", [True, False])
def test_the_launcher_of_the_plan_of_all_tests_takes_options(named: Any, in_file: bool) -> None:
    level = {"launcher_options": {"damage": "int3"}}
    base = {"launcher": named} if in_file else {}
    plan = _build({} if in_file else {"launcher": named}, level, base=base, base_url="host:9")
    more = {} if named == "embedded" else {"cache_blocks": 4}
    assert plan.launcher == Spec(name="embedded", options={**more, "damage": "int3"})


@pytest.mark.parametrize("back", [{"launcher": None}, {"base_url": "host:9"}])
def test_options_go_with_the_launcher_that_a_test_replaces(back: dict[str, Any]) -> None:
    of_class = {**CLASS, "launcher_options": {"damage": "int3"}}
    plan = _build(of_class, back, base_url="host:9")
    assert plan.launcher.options == {"base_url": "http://host:9/v1"}
