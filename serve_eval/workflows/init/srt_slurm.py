"""Read recipes of NVIDIA's srt-slurm, which SemiAnalysis's InferenceX writes as well. Pure.

They start TensorRT-LLM's workers as SLURM steps, mostly behind Dynamo's frontend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.workflows.init import srt_schema
from serve_eval.workflows.init.recipe import (
    DeploymentRecipe,
    Servers,
    as_count,
    as_duration,
    as_list,
    as_mapping,
    as_texts,
    is_placeholder,
    refuse_engine,
)
from serve_eval.workflows.init.srt_schema import BASE, ROLES, list_bases, list_variants

FORM = "recipe of srt-slurm"
GPUS_PER_NODE = 4
"""The form's own default."""
CHOSEN = (
    *("mem", "cpu-bind", "mpi", "overlap", "nodes", "ntasks", "output"),
    *("container-image", "container-mounts", "container-workdir"),
)
"""Options of srun that our launcher sets for each step or for the job."""
ACCURACY = {
    "gsm8k": "gsm8k",
    "mmlu": "mmlu",
    "gpqa": "gpqa_diamond",
    "aime": "aime",
    "longbenchv2": "longbench_v2",
}
"""Benchmarks of the form that measure accuracy, with our tasks."""


def recognises(content: Mapping[str, Any]) -> bool:
    """Return True for a file of this form."""
    inner = content.get(BASE)
    base: Mapping[str, Any] = inner if isinstance(inner, Mapping) else content
    first = isinstance(base.get("backend"), Mapping)
    return srt_schema.recognises(base) or (first and ("resources" in base or "benchmark" in base))


def read(
    content: Mapping[str, Any], name: str, *, base: bool = False
) -> Iterator[DeploymentRecipe]:
    """Yield a recipe per variant, or the one of the base that variants override.

    Raises PlanError for other engines, and for wrong values.
    """
    for variant, one in list_bases(content) if base else list_variants(content):
        yield _read(one, variant, f"{name}:{variant}" if variant else name)


def _engine(backend: Mapping[str, Any]) -> str:
    named = str(backend.get("type") or "").lower()
    sections = (key.removesuffix("_config") for key in backend if key.endswith("_config"))
    return named or next(sections, "sglang")


def _read(given: Mapping[str, Any], variant: str, where: str) -> DeploymentRecipe:
    content, of_roles = srt_schema.translate(given, where)
    backend = as_mapping(content.get("backend"), f"{where}: backend")
    if (engine := _engine(backend)) != "trtllm":
        raise refuse_engine(engine, where)
    resources = as_mapping(content.get("resources"), f"{where}: resources")
    per_node = as_count(resources.get("gpus_per_node") or GPUS_PER_NODE, f"{where}: gpus_per_node")
    groups = {
        role: servers
        for role, key in ROLES.items()
        if (servers := _servers(content, backend, resources, role, key, per_node, where))
    }
    if not groups:
        raise PlanError(f"{where}: no servers: trtllm_config and resources name none")
    if "agg" not in groups and len(groups) == 1:
        raise PlanError(f"{where}: servers for {next(iter(groups))}, so for one side only")
    nodes = sum(
        as_count(resources.get(f"{role}_nodes") or 0, f"{where}: {role}_nodes") for role in groups
    )
    model, image, unknown = _name_model(content, where)
    benchmark = as_mapping(content.get("benchmark"), f"{where}: benchmark")
    sbatch, srun, dropped = _slurm_words(content, where)
    return DeploymentRecipe(
        form=FORM,
        name=str(content.get("name") or where),
        variant=variant,
        model=model,
        image=image,
        single=groups.get("agg"),
        context=groups.get("prefill"),
        generation=groups.get("decode"),
        nodes=max(1, nodes),
        gpus_per_node=per_node,
        sbatch_args=sbatch,
        srun_args=srun,
        ready_timeout_s=_limit(content, where),
        concurrency=_concurrency(benchmark),
        tasks=_tasks(benchmark),
        unknown=unknown,
        left_out=(*dropped, *of_roles, *_list_left_out(content, benchmark)),
    )


def _servers(
    content: Mapping[str, Any],
    backend: Mapping[str, Any],
    resources: Mapping[str, Any],
    role: str,
    key: str,
    per_node: int,
    where: str,
) -> Servers | None:
    """Return the servers of a role; None if the recipe has none."""
    sections = as_mapping(backend.get("trtllm_config"), f"{where}: trtllm_config")
    config = sections.get(key)
    nodes = as_count(resources.get(f"{role}_nodes") or 0, f"{where}: {role}_nodes")
    workers = as_count(resources.get(f"{role}_workers") or 0, f"{where}: {role}_workers")
    if config is None and not workers:
        return None
    each = resources.get(f"gpus_per_{role}")
    if each is None and nodes and workers:
        each = nodes * per_node // workers
    own = as_texts(backend.get(f"{key}_environment"), f"{where}: {key}_environment")
    shared = as_texts(content.get("environment"), f"{where}: environment")
    return Servers(
        config=as_mapping(config, f"{where}: trtllm_config.{key}"),
        env={**shared, **own},
        extra_args=tuple(
            str(word)
            for word in as_list(backend.get(f"{key}_extra_args"), f"{where}: {key}_extra_args")
        ),
        count=max(1, workers),
        gpus=None if each is None else as_count(each, f"{where}: gpus_per_{role}"),
    )


def _name_model(
    content: Mapping[str, Any], where: str
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return the model, the image, and what is not known of them.

    Both may be names of the cluster's own srtslurm.yaml, which a recipe does not contain.
    """
    section = as_mapping(content.get("model"), f"{where}: model")
    identity = as_mapping(content.get("identity"), f"{where}: identity")
    known = as_mapping(identity.get("model"), f"{where}: identity.model")
    shown = as_mapping(identity.get("container"), f"{where}: identity.container")
    path = str(section.get("path") or "")
    model, unknown = str(known.get("repo") or path.removeprefix("hf:")), []
    if is_placeholder(model):
        model = ""
    elif "/" not in model:
        unknown.append(
            f"model: {model} is a name of the cluster's srtslurm.yaml: write the folder of the"
            " checkpoint, or its name on the hub"
        )
    image = str(section.get("container") or "")
    if shown.get("image") and "/" not in image.partition(":")[0]:
        image = str(shown["image"])
    if image and "/" not in image and not image.endswith(".sqsh"):
        unknown.append(
            f"launcher.container.image: the recipe has {image}, a name of the cluster's"
            " srtslurm.yaml"
        )
        image = ""
    return model or None, image or None, tuple(unknown)


def _slurm_words(
    content: Mapping[str, Any], where: str
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Return the options of sbatch and srun, and those of pyxis, which have places of their own."""
    slurm = as_mapping(content.get("slurm"), f"{where}: slurm")
    names = {"time_limit": "time", "account": "account", "partition": "partition"}
    sbatch = [
        _word(option, as_duration(slurm[key]) if option == "time" else slurm[key])
        for key, option in names.items()
        if not is_placeholder(slurm.get(key))
    ]
    directives = as_mapping(content.get("sbatch_directives"), f"{where}: sbatch_directives")
    sbatch += [_word(key, value) for key, value in directives.items()]
    srun, dropped = [], []
    for key, value in as_mapping(content.get("srun_options"), f"{where}: srun_options").items():
        if key in CHOSEN:
            dropped.append(f"srun_options.{key}: the launcher chooses it")
        else:
            srun.append(_word(key, value))
    return tuple(sbatch), tuple(srun), dropped


def _word(option: str, value: Any) -> str:
    return f"--{option}" if value in (None, "", True) else f"--{option}={value}"


def _limit(content: Mapping[str, Any], where: str) -> int | None:
    check = as_mapping(content.get("health_check"), f"{where}: health_check")
    if not {"max_attempts", "interval_seconds"} <= check.keys():
        return None
    return as_count(check["max_attempts"], where) * as_count(check["interval_seconds"], where)


def _concurrency(benchmark: Mapping[str, Any]) -> tuple[int, ...]:
    given = benchmark.get("concurrencies")
    words = given.split("x") if isinstance(given, str) else given
    words = words if isinstance(words, list) else [words]
    return tuple(int(one) for one in words if str(one).isdecimal())


def _tasks(benchmark: Mapping[str, Any]) -> tuple[str, ...]:
    kind = str(benchmark.get("type") or "").lower().replace("-", "").replace("_", "")
    return tuple(task for name, task in ACCURACY.items() if name in kind)


def _list_left_out(content: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Iterator[str]:
    frontend = content.get("frontend")
    kind = frontend.get("type", "dynamo") if isinstance(frontend, Mapping) else "dynamo"
    if kind != "trtllm_serve":
        yield (
            f"the frontend and router of {kind}: requests go through trtllm-serve's own"
            " orchestrator, or to the one server"
        )
    if benchmark and not _tasks(benchmark):
        kind = str(benchmark.get("type") or "unnamed")
        yield f"the benchmark {kind}, which measures speed with prompts of its own"
