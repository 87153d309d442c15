"""Test how deployments are distinguished, and where a table has tasks that were not asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_eval.schema import AccuracySpec, Endpoint, Metric, Plan, Spec
from serve_eval.series.cells import find_column
from serve_eval.series.deployments import (
    choose_shown,
    describe_deployment,
    name_deployments,
    name_folders,
    without_seeds,
)
from serve_eval.series.read_runs import PlannedTask


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["o/fp8", "o/bf16"], ["fp8", "bf16"]),
        (["o/20261128_100000_m", "o/20261129_100001_m"], ["", ""]),
        (["o/20261128_100000_m", "o/20261128_100000_m_2"], ["", ""]),
        (["o/2026-11-27/fp8", "o/2026-11-28/fp8", "o/2026-11-28/bf16"], ["fp8", "fp8", "bf16"]),
        (["o/gsm8k-fp8", "o/mmlu-fp8", "o/gsm8k_bf16"], ["fp8", "fp8", "bf16"]),
        (["o/fp8/gsm8k", "o/fp8/mmlu", "o/bf16/mmlu"], ["fp8", "fp8", "bf16"]),
        (["o/20261128_100000_nightly/runs/fp8", "o/x/runs/fp8"], ["nightly/fp8", "x/fp8"]),
        (["o/a", "o/a/b"], ["", "b"]),
        (["o/old-1", "o/old-2"], ["old-1", "old-2"]),
        (["o/runs/gsm8k", "o/runs/gsm8k-2"], ["", ""]),
        (["o/runs/gsm8k", "o/runs/fp8_gsm8k-2"], ["", "fp8-2"]),
        (["o/runs/1", "o/runs/2"], ["1", "2"]),
        (["o/v20260101-fp8", "o/v2-fp8"], ["v-fp8", "v2-fp8"]),
    ],
)
def test_names_of_folders_lose_times_tasks_and_what_is_common(
    folders: list[str], names: list[str]
) -> None:
    runs = [(Path("/top") / folder, ["gsm8k", "mmlu"], []) for folder in folders]
    assert name_folders(runs) == names


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["o/fp8-seed1", "o/fp8_seed2", "o/bf16-s3"], ["fp8", "fp8", "bf16"]),
        (["o/seed1/fp8", "o/seed2/fp8", "o/sampling-seed=3"], ["fp8", "fp8", ""]),
        (["o/fp8-seed4", "o/fp8-12", "o/s1x"], ["fp8-seed4", "fp8-12", "s1x"]),
    ],
)
def test_names_of_folders_lose_the_sampling_seed_that_was_sent(
    folders: list[str], names: list[str]
) -> None:
    runs = [
        (Path("/top") / folder, ["gsm8k"], [str(i)]) for i, folder in enumerate(folders, start=1)
    ]
    assert name_folders(runs) == names


def test_an_attribute_that_is_the_sampling_seed_is_left_out() -> None:
    given = {"seed": "1", "sampling_seed": "1", "launcher.seed": "1", "bits": "1", "Seed": "2"}
    assert without_seeds(given, ["1"]) == {"launcher.seed": "1", "bits": "1", "Seed": "2"}


def _plan(options: dict[str, object], launcher: str = "simulated") -> Plan:
    return Plan(
        model="org/m",
        launcher=Spec(name=launcher, options=options),
        tasks=(Spec(name="gsm8k"),),
        accuracy_spec=AccuracySpec(quant_algo="FP8"),
    )


def test_the_address_counts_only_if_no_launcher_chose_it() -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:41234/v1")
    launched = describe_deployment(_plan({"seed": 1}), endpoint, {})
    assert launched == {"quant_algo": "FP8", "launcher": "simulated", "launcher.seed": "1"}
    asked = describe_deployment(_plan({"base_url": "localhost:41234"}, "external"), endpoint, {})
    assert asked["endpoint"] == "http://127.0.0.1:41234/v1"
    later = describe_deployment(_plan({"base_url": "http://me:key@a:1/v1"}, "external"), None, {})
    assert later == {"quant_algo": "FP8", "launcher": "external", "endpoint": "http://a:1/v1"}


def test_words_of_the_user_never_replace_what_is_known() -> None:
    told = describe_deployment(_plan({}), None, {"quant_algo": "mine", "bits": 8})
    assert told["quant_algo (suite)"] == "mine"
    assert (told["quant_algo"], told["bits"]) == ("FP8", "8")


def test_a_table_shows_what_differs_and_options_only_if_nothing_else_does() -> None:
    rows = [
        {"run": "a", "same": "1", "twin": "a", "quant_algo": "FP8", "launcher.seed": "1"},
        {"run": "b", "same": "1", "twin": "b", "quant_algo": "FP8", "launcher.seed": "2"},
        {"run": "c", "same": "1", "twin": "c", "launcher.seed": "3"},
    ]
    assert choose_shown(rows) == ["run", "quant_algo"]
    alike = [{"quant_algo": "FP8", "launcher.seed": seed} for seed in "123"]
    assert choose_shown(alike) == ["launcher.seed"]


@dataclass(frozen=True)
class _Run:
    model: str
    attributes: dict[str, str]


def test_only_models_with_several_deployments_get_another_name() -> None:
    runs = [
        _Run("org/m:7b", {"run": "fp8", "endpoint": "http://a:1"}),
        _Run("org/m:7b", {"run": "bf16", "endpoint": "http://a:2"}),
        _Run("org/one", {"run": "x"}),
        _Run("org/two", {"quant_algo": "FP8"}),
        _Run("org/two", {}),
        _Run("org/three", {"endpoint": "http://a:1"}),
        _Run("org/three", {"endpoint": "http://a:2"}),
    ]
    names = name_deployments(runs)
    assert names[:3] == ["org/m:7b (fp8)", "org/m:7b (bf16)", "org/one"]
    assert names[3:5] == ["org/two (quant_algo FP8)", "org/two (quant_algo none)"]
    assert names[5:] == ["org/three (endpoint http-//a-1)", "org/three (endpoint http-//a-2)"]


def _planned(**fingerprint: str) -> PlannedTask:
    spec = Spec(name="passkey_lines", options={})
    return PlannedTask(spec=spec, metric=Metric(), fingerprint=fingerprint, prompts=30)


def test_tasks_that_were_not_asked_share_a_column_if_only_their_seeds_differ() -> None:
    first, second = (_planned(seed=seed, max_tokens="16") for seed in "12")
    assert find_column(first, {}) == find_column(second, {})
    assert find_column(first, {}) != find_column(_planned(seed="1", max_tokens="32"), {})
