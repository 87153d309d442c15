"""Convert recipes of srt-slurm's second schema, and the base that variants override."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.workflows.init.recipes.reading import read_recipes
from tests.cli.command import serve_eval
from tests.recipes.test_recipes import EXAMPLES, convert


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_roles_of_srt_slurm_are_its_sections_under_other_names() -> None:
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
def test_the_base_that_variants_override_is_chosen_by_its_name(
    selector: str, name: str, ranks: int
) -> None:
    [found] = read_recipes(EXAMPLES / "srt_roles_variants.yaml", selector)
    assert found.single is not None
    assert (found.variant, found.single.ranks, found.single.gpus) == (name, ranks, ranks)
    [first] = read_recipes(EXAMPLES / "srt_variants.yaml", "base")
    assert first.variant == "base"


def test_a_variant_called_base_is_chosen_by_its_whole_name() -> None:
    Path("recipe.yaml").write_text(
        "base: {engine: trtllm, roles: {agg: {args: {tensor_parallel_size: 8}}}}\n"
        "override_base: {roles: {agg: {args: {tensor_parallel_size: 2}}}}\n"
    )
    for selector, ranks in (("base", 8), ("override_base", 2)):
        [found] = read_recipes(Path("recipe.yaml"), selector)
        assert found.single is not None
        assert found.single.ranks == ranks


def test_a_file_without_a_base_names_its_variants() -> None:
    refused = serve_eval("setup", "init", "--from", f"{EXAMPLES / 'srt_roles.yaml'}:base")
    assert (refused.returncode, "no variant base" in refused.stderr) == (2, True)


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
def test_wrong_roles_are_refused_by_name(roles: str, words: str) -> None:
    Path("recipe.yaml").write_text(f"schema: 2\nengine: trtllm\nroles: {roles}\n")
    refused = serve_eval("setup", "init", "--from", "recipe.yaml")
    assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr


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
def test_the_engine_of_roles_is_read(text: str, words: str) -> None:
    Path("recipe.yaml").write_text(text)
    refused = serve_eval("setup", "init", "--from", "recipe.yaml")
    assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
