"""Read Dynamo's deployments for Kubernetes (DynamoGraphDeployment), with their config maps.

Both versions of the form are read: services by name (v1alpha1), and a list of components (v1beta1).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.workflows.init.recipe import (
    DeploymentRecipe,
    Servers,
    as_count,
    as_list,
    as_mapping,
    refuse_engine,
)

FORM, KIND = "deployment of Dynamo", "DynamoGraphDeployment"
ENGINE = re.compile(r"dynamo\.(trtllm|vllm|sglang|mocker)\b")
VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
FLAGS = {
    "tensor-parallel-size": "tensor_parallel_size",
    "pipeline-parallel-size": "pipeline_parallel_size",
    "expert-parallel-size": "moe_expert_parallel_size",
    "max-batch-size": "max_batch_size",
    "max-num-tokens": "max_num_tokens",
    "max-beam-width": "max_beam_width",
    "max-seq-len": "max_seq_len",
    "free-gpu-memory-fraction": "kv_cache_config.free_gpu_memory_fraction",
}
"""Flags of dynamo.trtllm that are keys of LlmArgs. A config overrides them."""
SWITCHES = {"enable-attention-dp": "enable_attention_dp", "trust-remote-code": "trust_remote_code"}
FOR_A_SHELL = ("-c", "-lc", "-ec")
"""Words of a shell after which a script follows."""
USED = ("model-path", "model", "served-model-name", "disaggregation-mode")
CONFIGS = ("extra-engine-args", "override-engine-args")


@freeze
class EngineComponent:
    """A component that runs an engine: its words after dynamo.ENGINE, and its pod."""

    name: str
    role: str
    engine: str
    flags: Mapping[str, str]
    env: Mapping[str, str]
    image: str | None
    servers: Servers
    pod_gpus: int | None
    pods: int
    unknown: tuple[str, ...] = ()


def recognises(documents: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if one of the documents is a deployment of Dynamo."""
    return any(one.get("kind") == KIND for one in documents)


def read(
    documents: Sequence[Mapping[str, Any]], name: str, folder: Path
) -> Iterator[DeploymentRecipe]:
    """Yield the deployments of a file. Engine configs that it lacks are looked for in `folder`.

    Raises PlanError for other engines, and for wrong values.
    """
    maps = {
        str(as_mapping(one.get("metadata"), name).get("name")): as_mapping(one.get("data"), name)
        for one in documents
        if one.get("kind") == "ConfigMap"
    }
    graphs = [one for one in documents if one.get("kind") == KIND]
    for graph in graphs:
        title = str(as_mapping(graph.get("metadata"), name).get("name") or name)
        yield _read(graph, title, name, maps, folder, variant=title if len(graphs) > 1 else "")


def _read(
    graph: Mapping[str, Any],
    title: str,
    where: str,
    maps: Mapping[str, Mapping[str, Any]],
    folder: Path,
    *,
    variant: str,
) -> DeploymentRecipe:
    spec = as_mapping(graph.get("spec"), f"{where}: spec")
    shared = _variables(spec.get("envs") or spec.get("env"))
    components = list(_list_components(spec, where))
    found = [_worker(label, one, shared, maps, folder, where) for label, one in components]
    workers = [one for one in found if one is not None]
    if not workers:
        raise refuse_engine(str(spec.get("backendFramework") or "nothing"), where)
    for one in workers:
        if one.engine != "trtllm":
            raise refuse_engine(one.engine, where)
    by_role: dict[str, EngineComponent] = {}
    left_out = ["the frontend and router of Dynamo: requests go through trtllm-serve"]
    for one in workers:
        if one.role in by_role:
            left_out.append(f"the component {one.name}: the plan has one kind of each role")
        else:
            by_role[one.role] = one
    kept = by_role.values()
    for one in kept:
        other = [flag for flag in one.flags if flag not in (*FLAGS, *SWITCHES, *USED, *CONFIGS)]
        left_out += [f"{one.name}: the option of Dynamo --{flag}" for flag in other]
    context, generation = by_role.get("prefill"), by_role.get("decode")
    if (context is None) != (generation is None):
        raise PlanError(f"{where}: {title} has workers for one side only")
    single = by_role.get("agg")
    first = single or generation
    assert first is not None
    several = [one for one in kept if one.pods > 1]
    models = [one.flags.get("model-path") or one.flags.get("model") for one in kept]
    served = first.flags.get("served-model-name")
    model = next((one for one in models if one), served)
    unknown = [text for one in kept for text in one.unknown]
    image = first.image
    if image and "$" in image:
        unknown.append(f"launcher.container.image: the recipe has {image}")
        image = None
    folders = {
        name: value for one in kept for name, value in one.env.items() if value.startswith("/")
    }
    unknown += [f"env {name}: {value} is a path in the pods" for name, value in folders.items()]
    if model and model.startswith("/"):
        unknown.append(f"model: {model} is a folder of the pods (served as {served or model})")
    return DeploymentRecipe(
        form=FORM,
        name=title,
        variant=variant,
        model=model,
        image=image,
        single=None if single is None else single.servers,
        context=None if single or context is None else context.servers,
        generation=None if single or generation is None else generation.servers,
        nodes=max((one.pods for one in kept), default=1) if several else None,
        gpus_per_node=several[0].pod_gpus if several else None,
        unknown=tuple(unknown),
        left_out=tuple(left_out),
    )


def _list_components(
    spec: Mapping[str, Any], where: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, one in as_mapping(spec.get("services"), f"{where}: services").items():
        yield name, as_mapping(one, f"{where}: {name}")
    for one in as_list(spec.get("components"), f"{where}: components"):
        component = as_mapping(one, f"{where}: components")
        yield str(component.get("name")), component


def _worker(
    name: str,
    component: Mapping[str, Any],
    shared: Mapping[str, str],
    maps: Mapping[str, Mapping[str, Any]],
    folder: Path,
    where: str,
) -> EngineComponent | None:
    """Return a component that runs an engine; None for a frontend and others."""
    pod, container = _pod(component, where)
    env = {
        **shared,
        **_variables(component.get("envs")),
        **_variables(container.get("env")),
    }
    words = _words(container, env)
    at = next((i for i, word in enumerate(words) if ENGINE.fullmatch(word)), None)
    if at is None:
        return None
    match = ENGINE.fullmatch(words[at])
    assert match is not None
    flags = _flags(words[at + 1 :])
    role = flags.get("disaggregation-mode") or str(
        component.get("subComponentType") or component.get("type") or ""
    )
    role = role if role in ("prefill", "decode") else "agg"
    config, unknown = _config(flags, pod, container, maps, folder)
    gpus, pods = _gpus(component, container, where)
    count = as_count(component.get("replicas", 1), f"{where}: {name}.replicas")
    servers = Servers(config=config, env=env, count=max(1, count))
    if gpus is not None and config:
        servers = replace(servers, gpus=gpus * pods)
    return EngineComponent(
        name=name,
        role=role,
        engine=match[1],
        flags=flags,
        env=env,
        image=None if container.get("image") is None else str(container["image"]),
        servers=servers,
        pod_gpus=gpus,
        pods=pods,
        unknown=tuple(f"{name}: {text}" for text in unknown),
    )


def _pod(component: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specification of a component's pod, and its main container."""
    own = as_mapping(component.get("extraPodSpec"), f"{where}: extraPodSpec")
    if own:
        return own, as_mapping(own.get("mainContainer"), f"{where}: mainContainer")
    template = as_mapping(component.get("podTemplate"), f"{where}: podTemplate")
    pod = as_mapping(template.get("spec"), f"{where}: podTemplate.spec")
    listed = as_list(pod.get("containers"), f"{where}: containers")
    containers = [as_mapping(one, f"{where}: containers") for one in listed]
    main = [one for one in containers if one.get("name") in ("main", None)] or containers
    return pod, main[0] if main else {}


def _variables(listed: Any) -> dict[str, str]:
    """Return variables with a value of their own, and none that a cluster fills in."""
    return {
        str(one["name"]): str(one["value"])
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping) and "name" in one and one.get("value") is not None
    }


def _words(container: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """Return the words of a container's command, also of a script for a shell."""
    given = [*as_list(container.get("command"), "command"), *as_list(container.get("args"), "args")]
    found: list[str] = []
    for one in given:
        text = VARIABLE.sub(lambda m: env.get(m[1] or m[2], m[0]), str(one))
        if found and found[-1] in FOR_A_SHELL:
            try:
                found += shlex.split(text.replace("\\\n", " "), comments=True)
            except ValueError:
                found += text.split()
        else:
            found.append(text)
    return found


def _flags(words: Sequence[str]) -> dict[str, str]:
    """Return the options among words, by name; one without a value is true."""
    found, i = {}, 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and i < len(words) and not words[i].startswith("--"):
            value = words[i]
            i += 1
        found[name] = value or "true"
    return found


def _config(
    flags: Mapping[str, str],
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    maps: Mapping[str, Mapping[str, Any]],
    folder: Path,
) -> tuple[dict[str, Any], list[str]]:
    """Return LlmArgs as dynamo.trtllm reads them: flags, the config over them, its overrides."""
    config: dict[str, Any] = {}
    for flag, key in FLAGS.items():
        if flag in flags:
            outer, _, inner = key.partition(".")
            value = _load(flags[flag], f"--{flag}")
            config[outer] = {inner: value} if inner else value
    config |= {key: True for flag, key in SWITCHES.items() if flag in flags}
    unknown = []
    if path := flags.get("extra-engine-args"):
        text = _find_file(path, pod, container, maps, folder)
        if text is None:
            unknown.append(f"config: the recipe reads {path}, which it does not contain")
        else:
            config = _over(config, as_mapping(_load(text, path), path))
    if given := flags.get("override-engine-args"):
        try:
            config = _over(config, as_mapping(json.loads(given), "override-engine-args"))
        except ValueError:
            unknown.append(f"config: --override-engine-args {given} is no JSON")
    return config, unknown


def _load(text: str, where: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PlanError(f"{where}: cannot be read as YAML: {error}") from error


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _over(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _find_file(
    path: str,
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    maps: Mapping[str, Mapping[str, Any]],
    folder: Path,
) -> str | None:
    """Return a file as the container sees it: of a mounted config map, else a file of its name."""
    name = PurePosixPath(path).name
    mounted = {
        str(one.get("name"))
        for one in _list_mappings(container, "volumeMounts")
        if path.startswith(str(one.get("mountPath", "")).rstrip("/") + "/")
    }
    sources = [
        str(as_mapping(volume.get("configMap"), "configMap").get("name"))
        for volume in _list_mappings(pod, "volumes")
        if str(volume.get("name")) in mounted and volume.get("configMap")
    ]
    for source in (*sources, *maps):
        if name in maps.get(source, {}):
            return str(maps[source][name])
    beside = folder / name
    return beside.read_text(encoding="utf-8") if beside.is_file() else None


def _list_mappings(section: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [as_mapping(one, key) for one in as_list(section.get(key), key)]


def _gpus(
    component: Mapping[str, Any], container: Mapping[str, Any], where: str
) -> tuple[int | None, int]:
    """Return the GPUs of a pod (None: not known), and the pods of a server."""
    own, outer = container.get("resources"), component.get("resources")
    found = None
    for resources in (outer, own):
        limits = as_mapping(as_mapping(resources, where).get("limits"), where)
        given = limits.get("gpu", limits.get("nvidia.com/gpu"))
        found = given if given is not None else found
    multinode = as_mapping(component.get("multinode"), where)
    pods = as_count(multinode.get("nodeCount", 1), f"{where}: nodeCount")
    return None if found is None else as_count(found, f"{where}: gpu"), max(1, pods)
