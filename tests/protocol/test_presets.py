"""Test the presets of models, and which settings make answers meaningless.

That its values are those of the cards can only be read there.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.protocol.presets import (
    EFFORTS,
    PresetRow,
    choose_options,
    describe_options,
    merge_bodies,
    read_presets,
)
from serve_eval.protocol.sampling_fields import find_in_description, find_meaningless
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Spec

TABLE = read_presets()
ROWS = pytest.mark.parametrize("row", TABLE.presets, ids=lambda row: row.name)


def test_there_are_rows_for_more_than_thirty_families() -> None:
    assert len({row.family for row in TABLE.presets}) > 30
    names = [row.name for row in TABLE.presets]
    assert len(names) == len(set(names))
    patterns = [pattern for row in TABLE.presets for pattern in row.models]
    assert len(patterns) == len(set(patterns))


@ROWS
def test_a_row_has_a_source_and_the_day_of_reading_not_after_the_tables(row: PresetRow) -> None:
    assert re.fullmatch(r"https://[\w./-]+", row.source)
    assert re.fullmatch(r"(https://[\w./-]+)?", row.switch_source)
    assert date.fromisoformat(row.read) <= date.fromisoformat(TABLE.version)
    assert row.options or row.effort


@ROWS
def test_every_row_and_each_of_its_efforts_makes_requests(row: PresetRow) -> None:
    for effort in ("", *row.effort):
        options = choose_options(row, effort, row, TABLE)
        task = build_task(Spec(name="gsm8k", options={"apply_chat_template": True, **options}))
        assert task.sampling.max_tokens == options.get("max_tokens", task.sampling.max_tokens)
        assert {**task.extra, **(options.get("extra_body") or {})}.keys() == task.extra.keys()


@ROWS
def test_an_effort_of_another_mode_has_that_modes_sampling(row: PresetRow) -> None:
    for effort, told in dict(row.effort).items():
        other = row if told.row is None else TABLE.find(told.row)
        assert other.family == row.family
        options = choose_options(row, effort, row, TABLE)
        assert options.get("temperature") == other.temperature


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-thinking"),
        ("/models/Qwen3-32B-FP8/", "qwen3-thinking"),
        ("nvidia/Qwen3-235B-A22B-FP4", "qwen3-thinking"),
        ("Qwen/Qwen3-4B-Thinking-2507", "qwen3-thinking-2507"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-instruct-2507"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder"),
        ("Qwen/Qwen3-8B-Base", None),
        ("Qwen/Qwen3-Embedding-8B", None),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", None),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "nemotron-super-v1.5-thinking"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "llama-nemotron-v1-thinking"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3"),
        ("meta-llama/Llama-3.1-8B", None),
        ("zai-org/GLM-4.5-Air", "glm-4.5"),
        ("zai-org/GLM-4.5V", None),
        ("my-org/my-model", None),
    ],
)
def test_a_model_is_found_by_the_last_part_of_its_id(model: str, name: str | None) -> None:
    found = TABLE.find_for([model])
    assert (found and found.name) == name


def test_an_unknown_name_comes_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"unknown preset 'gpt-os'. Did you mean 'gpt-oss'\?") as e:
        TABLE.find("gpt-os")
    assert "serve-eval data list presets" in e.value.hint


def test_an_effort_that_a_family_lacks_is_refused_with_those_that_it_has() -> None:
    row = TABLE.find("gpt-oss")
    with pytest.raises(PlanError, match="gpt-oss has no effort none: its efforts are low, medium"):
        choose_options(row, "none", row, TABLE)
    row = TABLE.find("qwq")
    with pytest.raises(PlanError, match="qwq has no effort low: it has no efforts"):
        choose_options(row, "low", row, TABLE)


def test_the_upper_fields_win_and_variables_of_templates_are_merged_one_by_one() -> None:
    lower = {"top_k": 20, "chat_template_kwargs": {"thinking": True, "a": 1}}
    upper = {"min_p": 0, "chat_template_kwargs": {"reasoning_effort": "low"}}
    assert merge_bodies(lower, upper) == {
        "top_k": 20,
        "min_p": 0,
        "chat_template_kwargs": {"thinking": True, "a": 1, "reasoning_effort": "low"},
    }
    switched = {"chat_template_kwargs": {"enable_thinking": False}}
    assert merge_bodies(lower, switched)["chat_template_kwargs"] == {
        "a": 1,
        "enable_thinking": False,
    }


def test_options_are_written_in_one_line() -> None:
    options = {
        "temperature": 0.6,
        "thinking": True,
        "system_prompt": "detailed  thinking\non",
        "extra_body": {"top_k": 20, "chat_template_kwargs": {"thinking": False}},
    }
    assert describe_options(options) == (
        "temperature 0.6, thinking on, system_prompt 'detailed thinking on', top_k 20,"
        " chat_template_kwargs.thinking off"
    )
    assert EFFORTS == ("none", "low", "medium", "high", "max")


FORCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
SYNTHETIC = '{"method": "mtp", "rejection_sample_method": "synthetic"}'


@pytest.mark.parametrize(
    "content",
    [
        {"env": {FORCE: "2"}},
        {"generation_servers": {"env": {FORCE: 1.49}}},
        {"config": {"load_format": "dummy"}},
        {"config": {"load_format": "DUMMY"}},
        {"speculative": {"rejection_sample_method": "synthetic"}},
        {"speculative": {"synthetic_acceptance_rates": [0.9, 0.5]}},
        {"env": {"SGLANG_SIMULATE_ACC_LEN": "2.99"}},
        {"env": {"TRTLLM_DISAGG_BENCHMARK_GEN_ONLY": "1"}},
        {"extra_body": {"ignore_eos": True}},
        ["--load-format", "dummy"],
        ["--load_format=dummy"],
        ["--speculative-config", SYNTHETIC],
        ["--speculative-config=" + SYNTHETIC],
        ["--speculative-config.rejection_sample_method", "synthetic"],
        ["--ignore-eos"],
        ["-e", f"{FORCE}=2"],
        [f"--env={FORCE}=2"],
        [f"--export=ALL,{FORCE}=2"],
        ["bash", "-c", f"{FORCE}=2 trtllm-serve"],
        f"env {FORCE}=2 trtllm-serve",
        "vllm serve m --load-format dummy",
    ],
)
def test_each_form_is_found(content: Any) -> None:
    [found] = find_meaningless(content, "launcher")
    assert found.effect in str(found)


@pytest.mark.parametrize(
    "content",
    [
        {"env": {FORCE: "0", "SGLANG_SIMULATE_ACC_LEN": "-1", "OTHER": "dummy"}},
        {"env": {FORCE: None}},
        {"config": {"load_format": "auto", "speculative_config": {"decoding_type": "MTP"}}},
        {"speculative": {"rejection_sample_method": "block", "synthetic_acceptance_rate": None}},
        {"extra_body": {"ignore_eos": False}},
        {"model": "dummy", "extra_args": ["--load-format", "safetensors"]},
        ["--ignore-eos", "false"],
        ["--served-model-name", "ignore_eos"],
        "trtllm-serve",
        "",
        None,
        7,
        "{not json --load",
    ],
)
def test_sound_settings_are_not(content: Any) -> None:
    assert list(find_meaningless(content, "launcher")) == []


def test_a_place_leads_to_the_setting() -> None:
    [found] = find_meaningless({"generation_servers": {"env": {FORCE: "2"}}}, "launcher")
    assert str(found) == (
        f"launcher.generation_servers.env: {FORCE} 2 accepts a fixed number of drafts, right or"
        " wrong"
    )


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ({"vllm_config": "model='m', load_format=dummy, tensor_parallel_size=1"}, 1),
        ({"vllm_config": "load_format=<LoadFormat.DUMMY: 'dummy'>, seed=0"}, 1),
        ({"vllm_config": {"load_config": {"load_format": "dummy"}}}, 1),
        ({"vllm_config": "speculative_config=S(rejection_sample_method='synthetic', x=1)"}, 1),
        ({"load_format": "dummy", "internal_states": [{}]}, 1),
        ({"vllm_config": "load_format=auto, speculative_config=None", "vllm_env": {}}, 0),
        ({"disaggregated_params": {}}, 0),
        (None, 0),
    ],
)
def test_the_description_of_a_server_is_read(told: Any, count: int) -> None:
    assert len(list(find_in_description(told, "the server"))) == count
