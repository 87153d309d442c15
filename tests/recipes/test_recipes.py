"""Convert recipes of each form through `serve-eval setup init`, and count their nodes."""

from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.workflows.init.recipe_plans import read_recipes
from serve_eval.workflows.init.srt_schema import list_variants
from serve_eval.yaml_source import parse
from tests.cli.command import serve_eval

EXAMPLES = Path(__file__).parent / "examples"
FORCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _plan(file="plan.yaml"):
    return parse(Path(file).read_text(), file, ValueError).value


def convert(name, more=""):
    """Return the plan of a recipe, which a dry run takes, and its text."""
    done = serve_eval(f"setup init --from {EXAMPLES}/{name} {more}", exits=0)
    assert "would be refused" not in done.stdout
    assert done.stdout.startswith(" WRITTEN   plan.yaml")
    serve_eval("run plan.yaml --dry-run", exits=0)
    return _plan(), Path("plan.yaml").read_text()


def test_a_recipe_of_srt_slurm_becomes_steps():
    plan, text = convert("srt.yaml")
    launcher = plan["launcher"]
    assert (plan["model"], launcher["name"], launcher["gpus_per_node"]) == ("org/model", "slurm", 4)
    assert launcher["ready_timeout_s"] == 1000
    assert launcher["container"]["image"] == "nvcr.io#nvidia/tensorrt-llm/release:1.3.0"
    assert launcher["sbatch_args"] == ["--time=02:00:00", "--cpus-per-gpu=16"]
    sides = launcher["trtllm_disaggregated"]
    context, generation = sides["context_servers"], sides["generation_servers"]
    assert (context["num_instances"], generation["num_instances"]) == (2, 1)
    assert context["env"] == {"TRTLLM_ENABLE_PDL": "1"}
    assert "env" not in generation
    assert "load_format" not in generation["config"]
    assert generation["config"]["speculative_config"]["decoding_type"] == "MTP"
    for words in (
        f"# * launcher.generation_servers.env {FORCE}=1.5: it accepts a fixed number of drafts",
        "# * launcher.generation_servers.config load_format: dummy: it loads random weights",
        "# * launcher.context_servers.env DYN_TOKENIZER, DYN_OTHER: for Dynamo only",
        "# * the benchmark sa-bench, which measures speed",
        "at most 1227 tokens of prompt and answer",
        "written for 4, 8 requests in flight",
    ):
        assert words in text, words


def test_a_recipe_of_one_node_needs_no_slurm_and_names_what_is_unknown():
    plan, text = convert("srt_alone.yaml")
    assert plan["launcher"] == {
        "name": "trtllm",
        "config": {"tensor_parallel_size": 2, "max_batch_size": 8},
    }
    for words in (
        "model: dsr1 is a name of the cluster's srtslurm.yaml",
        "launcher.container.image: the recipe has some-image",
        "1 of 2 equal servers: the plan starts one of them",
        "gives 4 GPUs to a server whose config has 2 ranks",
        "The recipe measures gpqa_diamond: see",
    ):
        assert words in text, words


def test_variants_become_plans_of_their_own():
    done = serve_eval(f"setup init --from {EXAMPLES}/srt_variants.yaml -o p.yaml", exits=0)
    small = _plan("p-small.yaml")["launcher"]
    assert small["env"] == {"A": "1"}
    assert small["config"] == {"tensor_parallel_size": 2, "enable_chunked_prefill": True}
    sizes = [_plan(f"p-sizes_{i}.yaml")["launcher"]["config"] for i in (0, 1)]
    assert [one["tensor_parallel_size"] for one in sizes] == [1, 4]
    assert [one["max_batch_size"] for one in sizes] == [8, 8]
    assert not Path("p.yaml").exists()
    assert done.stdout.startswith(" WRITTEN   3 plans: 3 WRITTEN\n")
    assert len(done.stdout.splitlines()) <= 22
    assert "\n fill in  p-small.yaml: launcher: the recipe gives 8 GPUs" in done.stdout
    whole = serve_eval(f"setup init --from {EXAMPLES}/srt_variants.yaml --force -v").stdout
    assert " left out plan-small.yaml and 2 more: the frontend and router of dynamo" in whole


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("small", ["small"]),
        ("override_small", ["small"]),
        ("zip_override_sizes", ["sizes_0", "sizes_1"]),
        ("zip_override_sizes[1]", ["sizes_1"]),
        ("s*", ["small", "sizes_0", "sizes_1"]),
    ],
)
def test_a_variant_is_chosen_as_srtctl_does(selector, names):
    found = read_recipes(EXAMPLES / "srt_variants.yaml", selector)
    assert [one.variant for one in found] == names


def test_an_unknown_variant_names_the_known_ones():
    serve_eval(
        "setup init --from",
        f"{EXAMPLES / 'srt_variants.yaml'}:big",
        exits=2,
        tells="Its variants: small, sizes_0, sizes_1.",
    )


def test_a_sweep_has_a_plan_per_combination():
    found = read_recipes(EXAMPLES / "srt_sweep.yaml")
    assert [one.variant for one in found] == [
        *("tp1_dtypeauto", "tp1_dtypefp8", "tp2_dtypeauto", "tp2_dtypefp8")
    ]
    last = found[-1].single
    assert last.config == {"tensor_parallel_size": 2, "kv_cache_config": {"dtype": "fp8"}}


def test_lists_of_unlike_lengths_are_refused():
    content = {"base": {}, "zip_override_x": {"a": [1, 2], "b": [1, 2, 3]}}
    with pytest.raises(PlanError, match="zip_override_x: lists of"):
        list(list_variants(content))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang.yaml", "a recipe for SGLang, which no launcher starts"),
        ("dynamo_vllm.yaml", "a recipe for vLLM, whose recipes are not converted"),
    ],
)
def test_recipes_of_other_engines_are_named_and_refused(name, words):
    refused = serve_eval(f"setup init --from {EXAMPLES}/{name}", exits=2, tells=words)
    assert "serve-eval setup init URL" in refused.stderr
    assert not Path("plan.yaml").exists()


def test_a_slurm_benchmark_is_read():
    plan, text = convert("benchmark.yaml")
    launcher = plan["launcher"]
    assert (plan["model"], launcher["name"]) == ("/data/model", "slurm")
    assert launcher["sbatch_args"] == ["--account=me", "--time=02:00:00", "--gres=gpu:4"]
    context = launcher["trtllm_disaggregated"]["context_servers"]
    assert context["env"] == {"TLLM_LOG_LEVEL": "INFO", "TRTLLM_ENABLE_PDL": "1"}
    assert context["num_instances"] == 2
    assert "--partition, which the recipe leaves open" in text
    assert "The recipe measures gsm8k: see" in text
    plan, _ = convert("benchmark_older.yaml", "--force")
    generation = plan["launcher"]["generation_servers"]
    assert (plan["model"], generation["config"]["tensor_parallel_size"]) == ("org/model", 2)


@pytest.mark.parametrize(
    ("written", "time"), [("02:00:00", "02:00:00"), ("12:30:00", "12:30:00"), ("'90'", "90")]
)
def test_a_time_limit_keeps_its_length(written, time):
    Path("recipe.yaml").write_text(
        f"slurm: {{job_time: {written}}}\nworker_config: {{ctx: {{}}, gen: {{}}}}\n"
    )
    [found] = read_recipes(Path("recipe.yaml"))
    assert found.sbatch_args == (f"--time={time}",)


def test_an_orchestrators_file_is_read():
    plan, text = convert("orchestrator.yaml")
    launcher = plan["launcher"]
    assert (launcher["name"], launcher["backend"]) == ("trtllm_disaggregated", "pytorch")
    assert launcher["orchestrator"] == {"schedule_style": "generation_first"}
    context, generation = launcher["context_servers"], launcher["generation_servers"]
    assert (generation["num_instances"], generation["router"]) == (2, {"type": "round_robin"})
    assert context["config"]["kv_cache_config"] == {
        "free_gpu_memory_fraction": 0.25,
        "enable_block_reuse": False,
    }
    assert context["config"]["cache_transceiver_config"] == {"backend": "DEFAULT"}
    assert "context_servers: the recipe names no backend" in text


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [("num_workers", 2, False), ("disagg_coordinator_url", "http://127.0.0.1:9000", True)],
)
def test_keys_of_a_fleet_are_the_orchestrators(key, value, refused):
    Path("recipe.yaml").write_text(
        f"{key}: {value}\n"
        "context_servers: {num_instances: 1, urls: [localhost:8001]}\n"
        "generation_servers: {num_instances: 1, urls: [localhost:8002]}\n"
    )
    done = serve_eval("setup init --from recipe.yaml --model m", exits=0)
    assert _plan()["launcher"]["orchestrator"] == {key: value}
    assert ("starts no coordinator elsewhere" in done.stdout) is refused


def test_configs_next_to_an_orchestrators_file_are_taken():
    plan, text = convert("separate/disagg_config.yaml", "--model org/model")
    sides = plan["launcher"]["trtllm_disaggregated"]
    assert sides["generation_servers"]["config"]["tensor_parallel_size"] == 2
    assert sides["context_servers"]["config"]["disable_overlap_scheduler"] is True
    assert "taken from ctx_config.yaml next to the file" in text


def test_a_config_of_one_server_is_read():
    plan, text = convert("llm_args.yaml")
    assert (plan["model"], plan["launcher"]["config"]["max_batch_size"]) == ("MODEL", 16)
    assert "model: the recipe does not name it" in text


def test_a_deployment_of_dynamo_is_read():
    plan, text = convert("dynamo.yaml")
    launcher = plan["launcher"]
    assert (plan["model"], launcher["name"], launcher["gpus_per_node"]) == ("org/model", "slurm", 4)
    sides = launcher["trtllm_disaggregated"]
    context, generation = sides["context_servers"], sides["generation_servers"]
    assert context["config"] == {
        "max_batch_size": 2,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.7, "dtype": "fp8"},
        "tensor_parallel_size": 4,
        "cache_transceiver_config": {"backend": "DEFAULT"},
    }
    assert generation["config"]["max_batch_size"] == 16  # The config overrides the flag.
    assert generation["config"]["kv_cache_config"] == {"dtype": "fp8"}
    assert generation["env"] == {"TRTLLM_ENABLE_PDL": "1"}
    assert f"{FORCE}=2" in text
    assert "prefill: the option of Dynamo --dyn-reasoning-parser" in text
    assert "env ENGINE_ARGS: /configs/prefill.yaml is a path in the pods" in text
    plan, text = convert("dynamo_components.yaml", "--force")
    assert plan["launcher"]["config"] == {"tensor_parallel_size": 2}
    assert "the recipe reads /in/the/image.yaml, which it does not contain" in text


def test_an_address_and_a_recipe_exclude_each_other():
    serve_eval(
        f"setup init localhost:8000 --from {EXAMPLES}/srt.yaml",
        exits=2,
        tells="leave the address out",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n", "no form of a recipe that is known"),
        ("- 1\n", "no form of a recipe that is known"),
        ("a: !tag 1\n", "cannot be read as YAML"),
        ("backend: {type: trtllm}\nresources: {agg_nodes: x}\n", "expected a number, not 'x'"),
        (
            "backend: {type: trtllm, trtllm_config: [1]}\nresources: {agg_nodes: 1}\n",
            "trtllm_config: expected a mapping",
        ),
        ("backend: {type: mine}\nresources: {}\n", "the engine mine, which is not known"),
        ("backend: {type: trtllm}\nresources: {}\n", "no servers"),
        ("backend: {type: trtllm}\nresources: {decode_workers: 1}\n", "one side only"),
    ],
)
def test_files_that_are_no_recipes_are_refused(text, words):
    Path("recipe.yaml").write_text(text)
    serve_eval("setup init --from recipe.yaml", exits=2, tells=words)
    serve_eval("setup init --from nowhere.yaml", exits=2)


@pytest.mark.parametrize("name", ["srt_alone.yaml", "llm_args.yaml", "separate/disagg_config.yaml"])
def test_a_model_that_the_command_names_is_not_left_to_fill_in(name):
    found = serve_eval(f"setup init --from {EXAMPLES}/{name} -o open.yaml")
    assert " fill in  model: " in found.stdout
    plan, text = convert(name, "--model org/mine")
    assert plan["model"] == "org/mine"
    assert "# * model:" not in text


def test_sides_with_models_of_their_own_keep_them():
    Path("recipe.yaml").write_text(
        "model: org/fp8\n"
        "context_servers: {model: org/fp4, num_instances: 1}\n"
        "generation_servers: {num_instances: 1}\n"
    )
    done = serve_eval("setup init --from recipe.yaml")
    assert " fill in  model: the recipe has several: org/fp8, org/fp4" in done.stdout
    launcher = _plan()["launcher"]
    sides = [launcher[f"{kind}_servers"]["model"] for kind in ("context", "generation")]
    assert sides == ["org/fp4", "org/fp8"]
    shown = serve_eval("run plan.yaml --dry-run")
    assert "the accuracy is that of neither" in shown.stderr


def test_a_plan_that_exists_is_replaced_only_by_force():
    Path("plan.yaml").write_text("mine")
    serve_eval(f"setup init --from {EXAMPLES}/srt.yaml", exits=2, tells="with --force")
    assert Path("plan.yaml").read_text() == "mine"


def test_a_plan_that_a_run_would_refuse_says_so():
    Path("recipe.yaml").write_text(
        "worker_config:\n"
        "  ctx: {cache_transceiver_config: {backend: UCX}}\n"
        "  gen: {cache_transceiver_config: {backend: NIXL}}\n"
    )
    serve_eval(
        "setup init --from recipe.yaml --model m",
        exits=0,
        prints="a run would be refused: launcher: the backend of cache_trans",
    )


def test_roles_of_srt_slurm_are_its_sections_under_other_names():
    plan, text = convert("srt_roles.yaml")
    launcher = plan["launcher"]
    assert (plan["model"], launcher["name"], launcher["gpus_per_node"]) == ("org/model", "slurm", 8)
    assert launcher["container"]["image"] == "nvcr.io#nvidia/tensorrt-llm/release:1.3.0"
    assert launcher["sbatch_args"] == ["--time=01:30:00"]
    sides = launcher["trtllm_disaggregated"]
    context, generation = sides["context_servers"], sides["generation_servers"]
    assert (context["num_instances"], generation["num_instances"]) == (3, 2)
    assert context["env"] == {"SHARED": "1", "TRTLLM_ENABLE_PDL": "1"}
    assert context["extra_args"] == ["--tool_parser", "qwen3"]
    assert generation["config"]["tensor_parallel_size"] == 2
    assert generation["env"] == {"SHARED": "1"}
    for words in (
        "# * roles.prefill.kv_events: Dynamo's router reads it",
        "# * roles.decode.restart: a server that ends fails the run",
        "# * the service mooncake-master: start it yourself if the servers need it",
        "The recipe measures gpqa_diamond: see",
    ):
        assert words in text, words
    assert "the frontend and router" not in text


@pytest.mark.parametrize(
    ("selector", "name", "ranks"),
    [("", "small", 2), ("override_small", "small", 2), ("base", "base", 8)],
)
def test_the_base_that_variants_override_is_chosen_by_its_name(selector, name, ranks):
    [found] = read_recipes(EXAMPLES / "srt_roles_variants.yaml", selector)
    assert (found.variant, found.single.ranks, found.single.gpus) == (name, ranks, ranks)
    [first] = read_recipes(EXAMPLES / "srt_variants.yaml", "base")
    assert first.variant == "base"


def test_a_variant_called_base_is_chosen_by_its_whole_name():
    Path("recipe.yaml").write_text(
        "base: {engine: trtllm, roles: {agg: {args: {tensor_parallel_size: 8}}}}\n"
        "override_base: {roles: {agg: {args: {tensor_parallel_size: 2}}}}\n"
    )
    for selector, ranks in (("base", 8), ("override_base", 2)):
        [found] = read_recipes(Path("recipe.yaml"), selector)
        assert found.single.ranks == ranks


def test_a_file_without_a_base_names_its_variants():
    serve_eval(
        "setup init --from", f"{EXAMPLES / 'srt_roles.yaml'}:base", exits=2, tells="no variant base"
    )


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ("{prefill: {}, other: {}}", "roles.other is no role of srt-slurm"),
        ("{agg: {}, decode: {}}", "roles: either agg, or prefill and decode"),
        ("{agg: {nodes: colocate}}", "roles.agg.nodes: only decode can colocate"),
        ("{agg: {nodes: x}}", "expected a number, not 'x'"),
        ("{prefill: {container: a/b}, decode: {}}", "a plan has one image"),
        ("{agg: 3}", "roles.agg: expected a mapping"),
        ("{agg: {extra_args: --x}}", "extra_args: expected a list"),
        ("{decode: {}}", "servers for decode, so for one side only"),
        ("{}", "no servers"),
    ],
)
def test_wrong_roles_are_refused_by_name(roles, words):
    Path("recipe.yaml").write_text(f"schema: 2\nengine: trtllm\nroles: {roles}\n")
    serve_eval("setup init --from recipe.yaml", exits=2, tells=words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: vllm\nroles: {agg: {}}\n", "a recipe for vLLM"),
        ("schema: 2\nroles: {agg: {}}\n", "a recipe for SGLang"),
        (
            "schema: 2\nroles: {prefill: {engine: vllm}, decode: {engine: {type: tilert}}}\n",
            "a recipe for vLLM",
        ),
        (
            "schema: 2\nroles: {prefill: {engine: trtllm}, decode: {engine: tilert}}\n",
            "the engine tilert, which is not known",
        ),
        ("engine: trtllm\nbackend: {type: trtllm}\nroles: {agg: {}}\n", "backend and roles"),
    ],
)
def test_the_engine_of_roles_is_read(text, words):
    Path("recipe.yaml").write_text(text)
    serve_eval("setup init --from recipe.yaml", exits=2, tells=words)


@pytest.mark.parametrize(
    ("ranks", "options", "said"),
    [
        (
            (3, 4, 1, 8),
            "gpus_per_node: 8",
            "the servers need 3 nodes with 8 GPUs each; the recipe has 2",
        ),
        (
            (2, 6, 1, 8),
            "gpus_per_node: 4",
            "the servers need 6 nodes with 4 GPUs each; the recipe has 2",
        ),
        ((1, 8, 1, 8), "gpus_per_node: 8", "the servers need 2 nodes with 8 GPUs each\n"),
        ((1, 2, 1, 2), "gpus_per_node: 8", "need 1 node with 8 GPUs; the recipe has 2"),
    ],
)
def test_the_nodes_that_a_plan_needs_are_named(ranks, options, said):
    given = zip(("prefill", "decode"), (ranks[:2], ranks[2:]), strict=True)
    roles = "".join(
        f"  {role}: {{nodes: 1, workers: {count}, args: {{tensor_parallel_size: {width}}}}}\n"
        for role, (count, width) in given
    )
    Path("recipe.yaml").write_text(f"engine: trtllm\nresources: {{{options}}}\nroles:\n{roles}")
    done = serve_eval("setup init --from recipe.yaml --model m")
    assert said in done.stdout


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        ("{name: trtllm, config: {tensor_parallel_size: 12}}", "need 12 GPUs of one machine: the"),
        ("{name: trtllm, tp: 8}", ""),
        (
            "{name: slurm, trtllm: {config: {tensor_parallel_size: 12}}}",
            "need 2 nodes with 8 GPUs each (of another number: launcher.gpus_per_node)",
        ),
        ("{name: slurm, gpus_per_node: 16, trtllm: {config: {tensor_parallel_size: 12}}}", ""),
        ("{name: slurm, gpus_per_node: 4, trtllm: {tp: 12}}", "need 3 nodes with 4 GPUs each"),
    ],
)
def test_a_dry_run_names_the_machines_that_ranks_need(launcher, said):
    Path("plan.yaml").write_text(
        f"model: m\ntasks: [word_problems]\nno_reference: true\nlauncher: {launcher}\n"
    )
    shown = serve_eval("run plan.yaml --dry-run", exits=0)
    assert (said in shown.stderr) if said else ("the servers need" not in shown.stderr)
