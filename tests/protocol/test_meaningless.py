"""Test which settings make answers meaningless, in each form in which engines take them."""

from __future__ import annotations

from typing import Any

import pytest

from serve_eval.protocol.meaningless import find_in_description, find_meaningless

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
