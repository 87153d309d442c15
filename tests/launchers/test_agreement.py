"""Test what launchers and reports say of a deployment, and how deployments are distinguished.

Test every kind of plan against reviewed files of what it writes and starts.

`golden/NAME.txt` is a launcher as in a plan, a line of dashes, and the text that the dry run shows.
`@` is that folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from serve_eval.cli._dry_run import list_commands, preview
from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import check_launcher, list_disagreements, list_promised
from serve_eval.report.document import make_page
from serve_eval.report.page.writer import render_page
from serve_eval.report.run.document import make_run_document
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
from serve_eval.workflows.invariants.check import check
from serve_eval.yaml_source import parse

MTP = {"decoding_type": "MTP", "num_nextn_predict_layers": 1}
DRAFTS = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def _plan(launcher, options):
    return Plan(model="m", launcher=Spec(name=launcher, options=options), tasks=())


def _sides(context, generation):
    return {"context_servers": context, "generation_servers": generation}


@pytest.mark.parametrize(
    ("launcher", "options", "promised"),
    [
        ("external", {"base_url": "h:1"}, ()),
        ("vllm", {}, ()),
        ("vllm", {"speculative": NGRAM}, ("speculation",)),
        ("vllm_disaggregated", {}, ("kv_transfer",)),
        ("vllm_disaggregated", {"speculative": NGRAM}, ("kv_transfer", "speculation")),
        ("vllm_disaggregated", _sides({"speculative": DRAFTS}, {}), ("kv_transfer",)),
        ("trtllm", {"config": {"speculative_config": MTP}}, ("speculation",)),
        ("trtllm", {}, ()),
        ("trtllm_disaggregated", {}, ("kv_transfer",)),
        (
            "trtllm_disaggregated",
            _sides({}, {"config": {"speculative_config": MTP}}),
            ("kv_transfer", "speculation"),
        ),
        ("slurm", {"trtllm_disaggregated": {}}, ("kv_transfer",)),
        ("slurm", {"trtllm": {"config": {"speculative_config": MTP}}}, ("speculation",)),
        ("container", {"image": "i", "trtllm_disaggregated": {}}, ("kv_transfer",)),
    ],
)
def test_launchers_promise_what_they_start(launcher, options, promised):
    assert list_promised(_plan(launcher, options)) == promised


@pytest.mark.parametrize(
    ("context", "generation", "words"),
    [
        ({}, {"config": {"speculative_config": MTP}}, ("speculation not set", "MTP", "17212")),
        (
            {"config": {"max_seq_len": 4096}},
            {"config": {"max_seq_len": 8192}},
            ("max_seq_len 4096", "8192"),
        ),
        (
            {"extra_args": ["--chat_template", "a.jinja"]},
            {},
            ("chat_template a.jinja", "servers not set: generation servers get token ids"),
        ),
        (
            {"config": {"kv_cache_config": {"max_attention_window": [512]}}},
            {},
            ("max_attention_window [512]",),
        ),
        (
            {"config": {"max_num_tokens": 2048, "max_seq_len": 4096}},
            {"config": {"max_seq_len": 4096}},
            ("at most 2048 tokens in a step", "up to 4096"),
        ),
    ],
)
def test_sides_of_trtllm_serve_are_compared(context, generation, words):
    for launcher, wrap in (
        ("trtllm_disaggregated", lambda sides: sides),
        ("slurm", lambda sides: {"trtllm_disaggregated": sides}),
    ):
        [line] = list_disagreements(_plan(launcher, wrap(_sides(context, generation))))
        assert all(word in line for word in words), line
    same = _sides(generation, generation)
    assert list_disagreements(_plan("trtllm_disaggregated", same)) == ()


@pytest.mark.parametrize(
    ("common", "context", "generation", "warned"),
    [
        (None, "m-fp4", None, "context servers have the model m-fp4, generation servers m: "),
        (None, "m-fp4", "m-fp8", "the model m-fp4, generation servers m-fp8"),
        ("m-fp8", None, "m-fp4", "the model m-fp8, generation servers m-fp4"),
        (None, "m", None, None),
        ("m-fp8", None, None, None),
        ("other", "m-fp8", "m-fp8", None),
    ],
)
def test_sides_that_load_different_models_are_named(common, context, generation, warned):
    sides = _sides(
        {"model": context} if context else {}, {"model": generation} if generation else {}
    )
    options = {**sides, **({"model": common} if common else {})}
    found = list_disagreements(_plan("trtllm_disaggregated", options))
    if warned is None:
        assert found == ()
        return
    [line] = found
    assert warned in line
    assert line.endswith("so that the accuracy is that of neither")


def test_a_draft_of_its_own_is_no_other_model():
    draft = {"speculative_config": {"decoding_type": "Eagle3", "speculative_model_dir": "d"}}
    sides = _sides({"config": draft}, {"config": draft})
    assert list_disagreements(_plan("trtllm_disaggregated", sides)) == ()


def test_prompts_that_fit_into_a_step_are_not_refused():
    config = {"config": {"max_num_tokens": 4096, "max_seq_len": 4096}}
    assert list_disagreements(_plan("trtllm_disaggregated", _sides(config, config))) == ()


def test_split_prompts_are_not_refused():
    config = {"max_num_tokens": 2048, "max_seq_len": 4096}
    sides = _sides(
        {"config": {**config, "enable_chunked_prefill": True}}, {"config": {"max_seq_len": 4096}}
    )
    assert list_disagreements(_plan("trtllm_disaggregated", sides)) == ()
    by_flag = _sides(
        {"config": config, "extra_args": ["--enable_chunked_prefill"]},
        {"config": {"max_seq_len": 4096}},
    )
    assert list_disagreements(_plan("trtllm_disaggregated", by_flag)) == ()


@pytest.mark.parametrize(
    ("context", "generation", "words"),
    [
        ({}, {"speculative": DRAFTS}, ("speculation not set", "eagle3")),
        ({}, {"extra_args": ["--chat_template=x"]}, ("--chat-template not set", "servers x: ")),
        ({"quantization": "fp8"}, {}, ("quantization fp8", "not set")),
        (
            {"extra_args": ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "99"]},
            {},
            ("at most 99 tokens in a step", "up to 512"),
        ),
    ],
)
def test_sides_of_vllm_are_compared(context, generation, words):
    options = {"max_model_len": 512, **_sides(context, generation)}
    [line] = list_disagreements(_plan("vllm_disaggregated", options))
    assert all(word in line for word in words), line


def test_drafts_from_the_text_need_no_cache():
    options = _sides({}, {"speculative": NGRAM})
    assert list_disagreements(_plan("vllm_disaggregated", options)) == ()


def test_servers_of_a_running_endpoint_are_named_by_their_roles():
    with pytest.raises(PlanError, match=r"launcher\.servers: 'decode' names no role"):
        check_launcher(_plan("external", {"base_url": "h:1", "servers": {"decode": "h:2"}}))


@pytest.mark.slow
async def test_a_pair_of_unequal_sizes_that_is_only_asked_for_letters(plan_of, standin, tmp_path):
    standin("v12")
    options = {"gpus": [0, 1, 2], "context_servers": {"tp": 2}, "discovery": True}
    plan = replace(plan_of("trtllm_disaggregated", options, limit=4), tasks=(Spec(name="mmlu"),))
    lines = []
    report = await evaluate(plan, tmp_path / "out", notify=lines.append)
    known = report.endpoint.info.deployment
    assert [(one.name, one.role, one.parallelism) for one in known.workers] == [
        ("context_0", "context", {"tp": 2}),
        ("generation_0", "generation", {"tp": 1}),
    ]
    assert {one.version for one in known.workers} == {known.front_door.version}
    assert all(
        (one.config or {})["cache_transceiver_config"]["backend"] == "UCX" for one in known.workers
    )
    assert known.cluster_before == known.cluster_after
    assert any(line.startswith("warning: asymmetric parallelism") for line in lines)
    assert [line.split(":")[0] for line in report.warnings if "parallelism" in line] == [
        "asymmetric parallelism"
    ]
    assert any("the generation servers are not tested" in line for line in report.warnings)
    page = render_page(make_page(make_run_document(report, tmp_path / "out")))
    assert "<dt>context servers</dt><dd>1: version" in page
    assert "6507" in page


@pytest.mark.slow
async def test_texts_are_placed_around_the_chunks_that_a_config_asks_for(
    plan_of, standin, tmp_path
):
    standin("v12", STANDIN_SKILLS="1")
    config = {"max_num_tokens": 1024, "enable_chunked_prefill": True}
    plan = plan_of("trtllm", {"gpus": [0], "config": config}, limit=12, concurrency=8)
    found = await check(plan, tmp_path / "out", chunk_tokens=(2048,))
    rows = {one.arm: one for one in found.results}
    assert {"chunked_1024", "chunked_2048"} < set(rows)
    assert not any(one.broken for one in found.results)
    chunked = rows["chunked_1024"]
    assert (chunked.changed.prompts, chunked.changed.own, chunked.changed.other) == (12, 0, 0)
    value = json.loads((tmp_path / "out/chunked_1024/report.json").read_text())["tasks"][0][
        "result"
    ]["value"]
    assert value == 100.0


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
def test_names_of_folders_lose_times_tasks_and_what_is_common(folders, names):
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
def test_names_of_folders_lose_the_sampling_seed_that_was_sent(folders, names):
    runs = [
        (Path("/top") / folder, ["gsm8k"], [str(i)]) for i, folder in enumerate(folders, start=1)
    ]
    assert name_folders(runs) == names


def test_an_attribute_that_is_the_sampling_seed_is_left_out():
    given = {"seed": "1", "sampling_seed": "1", "launcher.seed": "1", "bits": "1", "Seed": "2"}
    assert without_seeds(given, ["1"]) == {"launcher.seed": "1", "bits": "1", "Seed": "2"}


def _plan_options(options, launcher="simulated"):
    return Plan(
        model="org/m",
        launcher=Spec(name=launcher, options=options),
        tasks=(Spec(name="gsm8k"),),
        accuracy_spec=AccuracySpec(quant_algo="FP8"),
    )


def test_the_address_counts_only_if_no_launcher_chose_it():
    endpoint = Endpoint(base_url="http://127.0.0.1:41234/v1")
    launched = describe_deployment(_plan_options({"seed": 1}), endpoint, {})
    assert launched == {"quant_algo": "FP8", "launcher": "simulated", "launcher.seed": "1"}
    asked = describe_deployment(
        _plan_options({"base_url": "localhost:41234"}, "external"), endpoint, {}
    )
    assert asked["endpoint"] == "http://127.0.0.1:41234/v1"
    later = describe_deployment(
        _plan_options({"base_url": "http://me:key@a:1/v1"}, "external"), None, {}
    )
    assert later == {"quant_algo": "FP8", "launcher": "external", "endpoint": "http://a:1/v1"}


def test_words_of_the_user_never_replace_what_is_known():
    told = describe_deployment(_plan_options({}), None, {"quant_algo": "mine", "bits": 8})
    assert told["quant_algo (suite)"] == "mine"
    assert (told["quant_algo"], told["bits"]) == ("FP8", "8")


def test_a_table_shows_what_differs_and_options_only_if_nothing_else_does():
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


def test_only_models_with_several_deployments_get_another_name():
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


def _planned(**fingerprint):
    spec = Spec(name="passkey_lines", options={})
    return PlannedTask(spec=spec, metric=Metric(), fingerprint=fingerprint, prompts=30)


def test_tasks_that_were_not_asked_share_a_column_if_only_their_seeds_differ():
    first, second = (_planned(seed=seed, max_tokens="16") for seed in "12")
    assert find_column(first, {}) == find_column(second, {})
    assert find_column(first, {}) != find_column(_planned(seed="1", max_tokens="32"), {})


DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "".join((DOCS / name).read_text() for name in ("launching.md", "clusters.md"))
GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture
def _nothing_around_us(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CUDA_", "UCX_"))]:
        monkeypatch.delenv(name)


def shown(launcher):
    spec = Spec(name=launcher.pop("name"), options=launcher)
    plan = Plan(model="org/model", launcher=spec, tasks=(Spec(name="gsm8k"),))
    return "\n".join(list_commands(*preview(plan, Path("/runs/r/logs"))))


@pytest.mark.usefixtures("_nothing_around_us")
@pytest.mark.parametrize("name", sorted(file.stem for file in GOLDEN.glob("*.txt")))
def test_what_a_plan_starts(name):
    given, told = (GOLDEN / f"{name}.txt").read_text().split("\n---\n")
    text = shown(parse(given.replace("@", str(GOLDEN)), name, PlanError).value)
    assert text.replace(str(GOLDEN), "@").replace(sys.executable, "python") == told.rstrip("\n")


@pytest.mark.usefixtures("_nothing_around_us")
def test_every_launcher_that_starts_something_is_among_them():
    names = {file.read_text().split(":", 1)[1].split()[0] for file in GOLDEN.glob("*.txt")}
    trtllm = {"trtllm", "trtllm_disaggregated", "container", "slurm"}
    assert names >= {"simulated", "vllm", "vllm_disaggregated"} | trtllm


@pytest.mark.usefixtures("_nothing_around_us")
def test_the_plans_of_the_page_are_plans_and_print_what_it_says():
    texts = re.findall(r"```yaml\n(launcher:.*?)```\n(.*?)(?=\n## |```yaml)", PAGE, re.DOTALL)
    assert len(texts) >= 3
    for plan, after in texts:
        text = shown(parse(plan, "page", PlanError).value["launcher"])
        if printed := re.search(r"```\n((?:env|docker) .*?)```", after, re.DOTALL):
            assert " ".join(printed.group(1).split()) in " ".join(text.split())
    assert "```\ndocker run" in PAGE
