"""Read the files of TensorRT-LLM's SLURM benchmark (examples/disaggregated/slurm). Pure.

The newer form has `worker_config`, `hardware` and `environment`; the older one `exec`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.workflows.init.recipe import (
    DeploymentRecipe,
    Servers,
    as_count,
    as_duration,
    as_mapping,
    is_placeholder,
)

FORM = "SLURM benchmark of TensorRT-LLM"
SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep": "moe_expert_parallel_size",
    "cp": "context_parallel_size",
}
GEN_ONLY = "gen_only"


def recognises(content: Mapping[str, Any]) -> bool:
    """Return True for a file of this form."""
    workers = content.get("worker_config")
    if isinstance(workers, Mapping) and {"gen", "ctx"} & workers.keys():
        return True
    return isinstance(_older(content), Mapping)


def _older(content: Mapping[str, Any]) -> Any:
    section = content.get("exec")
    return section.get("config") if isinstance(section, Mapping) else None


def read(content: Mapping[str, Any], name: str) -> DeploymentRecipe:
    """Return the deployment. Raises PlanError for wrong values."""
    if isinstance(older := _older(content), Mapping):
        return _read_older(content, older, name)
    workers = as_mapping(content["worker_config"], f"{name}: worker_config")
    hardware = as_mapping(content.get("hardware"), f"{name}: hardware")
    around = as_mapping(content.get("environment"), f"{name}: environment")
    accuracy = as_mapping(content.get("accuracy"), f"{name}: accuracy")
    benchmark = as_mapping(content.get("benchmark"), f"{name}: benchmark")
    sides = {
        kind: Servers(
            config=as_mapping(workers.get(kind), f"{name}: worker_config.{kind}"),
            env={
                **read_variables(around.get("worker_env_var"), name),
                **read_variables(around.get(f"{kind}_worker_env_var"), name),
            },
            count=as_count(hardware.get(f"num_{kind}_servers", 1), f"{name}: num_{kind}_servers"),
        )
        for kind in ("ctx", "gen")
    }
    per_node = hardware.get("gpus_per_node")
    image, model = around.get("container_image"), around.get("model_path")
    words, unknown = _sbatch_words(content, name)
    if is_placeholder(image):
        unknown.append("launcher.container.image: the recipe leaves it open")
    single = None if sides["ctx"].count and "ctx" in workers else sides["gen"]
    return DeploymentRecipe(
        form=FORM,
        name=name,
        model=None if is_placeholder(model) else str(model),
        image=None if is_placeholder(image) else str(image),
        mounts=_mounts(around.get("container_mount")),
        single=single,
        context=None if single else sides["ctx"],
        generation=None if single else sides["gen"],
        nodes=None,
        gpus_per_node=None if per_node is None else as_count(per_node, f"{name}: gpus_per_node"),
        sbatch_args=words,
        concurrency=_loads(benchmark),
        tasks=_tasks(accuracy),
        unknown=tuple(unknown),
        left_out=tuple(_list_left_out(content, benchmark, around)),
    )


def _read_older(
    content: Mapping[str, Any], sections: Mapping[str, Any], name: str
) -> DeploymentRecipe:
    def servers(kind: str) -> Servers:
        given = as_mapping(sections.get(kind), f"{name}: exec.config.{kind}")
        config = as_mapping(given.pop("config", None), f"{name}: exec.config.{kind}.config")
        count = as_count(given.pop("dp", 1), f"{name}: exec.config.{kind}.dp")
        return Servers(
            config={**{SHORT.get(key, key): value for key, value in given.items()}, **config},
            count=max(1, count),
        )

    model = content["exec"].get("model_path")
    return DeploymentRecipe(
        form=FORM,
        name=name,
        model=None if is_placeholder(model) else str(model),
        context=servers("context"),
        generation=servers("generation"),
        left_out=("the benchmark, which measures speed with prompts of its own",),
    )


def read_variables(text: Any, name: str) -> dict[str, str]:
    """Return the variables of a text such as A=1 B=2."""
    words = _split(text, name)
    return {key: value for key, _, value in (word.partition("=") for word in words) if key}


def _split(text: Any, where: str) -> list[str]:
    try:
        return shlex.split("" if is_placeholder(text) else str(text))
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error


def _mounts(text: Any) -> tuple[str, ...]:
    return () if is_placeholder(text) else tuple(filter(None, str(text).split(",")))


def _sbatch_words(content: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the options of sbatch, and which the recipe leaves open."""
    slurm = as_mapping(content.get("slurm"), f"{name}: slurm")
    names = {"partition": "partition", "account": "account", "job_time": "time"}
    words = [
        f"--{option}={as_duration(slurm[key]) if option == 'time' else slurm[key]}"
        for key, option in names.items()
        if not is_placeholder(slurm.get(key))
    ]
    words += _split(slurm.get("extra_args"), f"{name}: slurm.extra_args")
    unknown = [
        f"launcher.sbatch_args: --{names[key]}, which the recipe leaves open"
        for key in ("partition", "account")
        if key in slurm and is_placeholder(slurm[key])
    ]
    return tuple(words), unknown


def _loads(benchmark: Mapping[str, Any]) -> tuple[int, ...]:
    words = str(benchmark.get("concurrency_list") or "").replace(",", " ").split()
    return tuple(int(word) for word in words if word.isdecimal())


def _tasks(accuracy: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tasks of lm-evaluation-harness that it measures, in both forms of the section."""
    if not accuracy.get("enable_accuracy_test"):
        return ()
    given = accuracy.get("tasks")
    names = given if isinstance(given, (list, dict)) else str(given or "").split(",")
    return tuple(str(one).strip() for one in names if str(one).strip())


def _list_left_out(
    content: Mapping[str, Any], benchmark: Mapping[str, Any], around: Mapping[str, Any]
) -> Iterator[str]:
    if benchmark:
        yield "the benchmark, which measures speed with prompts of its own"
    if str(benchmark.get("mode", "")).startswith(GEN_ONLY):
        yield (
            f"benchmark.mode {benchmark['mode']}: it generates without the KV cache of the prompt"
        )
    if around.get("server_env_var"):
        yield f"the orchestrator's own variables: {around['server_env_var']}"
    if as_mapping(content.get("profiling"), "profiling").get("nsys_on"):
        yield "profiling"
