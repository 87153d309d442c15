"""Say how many nodes or GPUs the servers of a recipe or a plan need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import serve_eval


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
def test_the_nodes_that_a_plan_needs_are_named(
    ranks: tuple[int, int, int, int], options: str, said: str
) -> None:
    given = zip(("prefill", "decode"), (ranks[:2], ranks[2:]), strict=True)
    roles = "".join(
        f"  {role}: {{nodes: 1, workers: {count}, args: {{tensor_parallel_size: {width}}}}}\n"
        for role, (count, width) in given
    )
    Path("recipe.yaml").write_text(f"engine: trtllm\nresources: {{{options}}}\nroles:\n{roles}")
    done = serve_eval("setup", "init", "--from", "recipe.yaml", "--model", "m")
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
def test_a_dry_run_names_the_machines_that_ranks_need(launcher: str, said: str) -> None:
    Path("plan.yaml").write_text(
        f"model: m\ntasks: [word_problems]\nno_reference: true\nlauncher: {launcher}\n"
    )
    shown = serve_eval("run", "plan.yaml", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert (said in shown.stderr) if said else ("the servers need" not in shown.stderr)
