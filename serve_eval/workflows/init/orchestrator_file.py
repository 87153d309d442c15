"""Read TensorRT-LLM's own files: the orchestrator's, and a config of LlmArgs. Pure.

The orchestrator's file lists the servers. Its other keys are arguments of the servers, of both
sides or of one; newer examples keep these in files of their own next to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_eval.launchers._trtllm.disaggregated import COORDINATOR, KNOWN
from serve_eval.workflows.init.recipe import (
    DeploymentRecipe,
    Servers,
    as_count,
    as_list,
    as_mapping,
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
