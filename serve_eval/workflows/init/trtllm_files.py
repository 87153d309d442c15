"""Read TensorRT-LLM's own files: the orchestrator's, a config of LlmArgs, the SLURM benchmark's.

The orchestrator's file lists the servers. Its other keys are arguments of the servers, of both
sides or of one; newer examples keep these in files of their own next to it.

The files of the SLURM benchmark (examples/disaggregated/slurm) have two forms: the newer one has
`worker_config`, `hardware` and `environment`; the older one `exec`. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.launchers._trtllm.disaggregated import COORDINATOR, KNOWN
from serve_eval.workflows.init.recipe import (
    DeploymentRecipe,
    Servers,
    as_count,
    as_duration,
    as_list,
    as_mapping,
    is_placeholder,
)

FORM, LLM_ARGS = "disaggregated configuration", "config of LlmArgs"
SIDES = ("context_servers", "generation_servers")
NOT_OF_SERVERS = ("hostname", "port", "model", "backend", "disagg_cluster", *SIDES)
OF_SIDE = ("num_instances", "urls", "router", "model")
OF_ORCHESTRATOR = (*KNOWN, COORDINATOR)
"""Keys that the orchestrator itself reads; a launch refuses the last one with its reason."""
FRACTION = "free_gpu_memory_fraction"
SIBLINGS = {
    "context_servers": ("ctx", "context", "prefill"),
    "generation_servers": ("gen", "decode"),
}
"""Beginnings of names of files next to it that hold the config of a side."""
USUAL_LLM_ARGS = {
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "moe_expert_parallel_size",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "kv_cache_config",
    "cuda_graph_config",
    "moe_config",
    "enable_attention_dp",
    "speculative_config",
    "cache_transceiver_config",
    "disable_overlap_scheduler",
    "enable_chunked_prefill",
}
LOCAL = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "")  # noqa: S104 - compared, not bound


def recognises(content: Mapping[str, Any]) -> bool:
    """Return True for an orchestrator's file."""
    return all(isinstance(content.get(side), Mapping) for side in SIDES)


def is_llm_args(content: Mapping[str, Any]) -> bool:
    """Return True for the config of a single server."""
    return len(USUAL_LLM_ARGS & content.keys()) > 1 and not any(side in content for side in SIDES)


def read_llm_args(content: Mapping[str, Any], name: str) -> DeploymentRecipe:
    """Return one server with this config."""
    config = {key: value for key, value in content.items() if key != "model"}
    model = content.get("model")
    return DeploymentRecipe(
        form=LLM_ARGS,
        name=name,
        model=None if model is None else str(model),
        single=Servers(config=config),
    )


def read(
    content: Mapping[str, Any], name: str, siblings: Mapping[str, Mapping[str, Any]]
) -> DeploymentRecipe:
    """Return the deployment. `siblings` are the files next to it, by name.

    Raises PlanError for wrong values.
    """
    shared = {
        key: value
        for key, value in content.items()
        if key not in (*NOT_OF_SERVERS, *OF_ORCHESTRATOR)
    }
    if FRACTION in shared:  # An argument of trtllm-serve, which LlmArgs have elsewhere.
        shared["kv_cache_config"] = {
            FRACTION: shared.pop(FRACTION),
            **as_mapping(shared.get("kv_cache_config"), f"{name}: kv_cache_config"),
        }
    unknown: list[str] = []
    sides = {side: _servers(content, side, shared, siblings, name, unknown) for side in SIDES}
    hosts = {
        str(url).removeprefix("http://").rpartition(":")[0]
        for side in SIDES
        for url in as_list(content[side].get("urls"), f"{name}: {side}.urls")
    }
    several = len(hosts - set(LOCAL)) > 1
    routers = {side: content[side].get("router") for side in SIDES}
    backend = content.get("backend")
    return DeploymentRecipe(
        form=FORM,
        name=name,
        model=_model(content, unknown),
        context=sides[SIDES[0]],
        generation=sides[SIDES[1]],
        backend=None if backend is None else str(backend),
        orchestrator={key: content[key] for key in OF_ORCHESTRATOR if key in content},
        routers=routers,
        discovery="disagg_cluster" in content,
        nodes=len(hosts) if several else None,
        unknown=tuple(unknown),
        left_out=("the addresses of the servers, which the launcher chooses",),
    )


def _model(content: Mapping[str, Any], unknown: list[str]) -> str | None:
    named = [content.get("model"), *(content[side].get("model") for side in SIDES)]
    found = list(dict.fromkeys(str(one) for one in named if one is not None))
    if len(found) > 1:
        unknown.append(f"model: the recipe has several: {', '.join(found)}")
    return found[0] if found else None


def _servers(
    content: Mapping[str, Any],
    side: str,
    shared: Mapping[str, Any],
    siblings: Mapping[str, Mapping[str, Any]],
    name: str,
    unknown: list[str],
) -> Servers:
    section = as_mapping(content[side], f"{name}: {side}")
    own = {key: value for key, value in section.items() if key not in OF_SIDE}
    if not own and not shared:
        named = [file for file in siblings if file.lower().startswith(SIBLINGS[side])]
        if len(named) == 1:
            own = dict(siblings[named[0]])
            unknown.append(f"launcher.{side}.config: taken from {named[0]} next to the file")
        else:
            unknown.append(
                f"launcher.{side}.config: the file has none; the servers got it by --config"
            )
    merged = {**shared, **own}
    for key in ("kv_cache_config",):
        if isinstance(shared.get(key), Mapping) and isinstance(own.get(key), Mapping):
            merged[key] = {**shared[key], **own[key]}
    urls = as_list(section.get("urls"), f"{name}: {side}.urls")
    count = section.get("num_instances", len(urls) if urls else 1)
    return Servers(
        model=_side_model(content, side),
        config=merged,
        count=as_count(count, f"{name}: {side}.num_instances"),
    )


def _side_model(content: Mapping[str, Any], side: str) -> str | None:
    """Return the model of a side; None if both sides load the same one."""
    loaded = {one: content[one].get("model") or content.get("model") for one in SIDES}
    own = loaded[side]
    return None if own is None or len(set(map(str, loaded.values()))) == 1 else str(own)


BENCHMARK = "SLURM benchmark of TensorRT-LLM"
SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep": "moe_expert_parallel_size",
    "cp": "context_parallel_size",
}
GEN_ONLY = "gen_only"


def recognises_benchmark(content: Mapping[str, Any]) -> bool:
    """Return True for a file of this form."""
    workers = content.get("worker_config")
    if isinstance(workers, Mapping) and {"gen", "ctx"} & workers.keys():
        return True
    return isinstance(_older(content), Mapping)


def _older(content: Mapping[str, Any]) -> Any:
    section = content.get("exec")
    return section.get("config") if isinstance(section, Mapping) else None


def read_benchmark(content: Mapping[str, Any], name: str) -> DeploymentRecipe:
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
        form=BENCHMARK,
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
        form=BENCHMARK,
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
