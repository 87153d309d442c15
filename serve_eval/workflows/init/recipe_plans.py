"""Recognise the form of a recipe file, to write the plans of its recipes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from serve_eval import yaml_source
from serve_eval.errors import PlanError
from serve_eval.protocol.sampling_fields import judge_setting
from serve_eval.workflows.init import (
    NO_MODEL,
    PROTOCOL,
    TASKS,
    dynamo,
    srt_slurm,
    trtllm_files,
    write_verdict,
)
from serve_eval.workflows.init.recipe import DeploymentRecipe, Servers
from serve_eval.workflows.init.srt_schema import BASE

MOST_BYTES = 8 * 1024 * 1024
KNOWN = (
    "Known are recipes of srt-slurm and InferenceX, TensorRT-LLM's disaggregated configurations,"
    " its SLURM benchmark files, a config of LlmArgs, and Dynamo's deployments."
)


def split_selector(given: str) -> tuple[Path, str]:
    """Return the file and the variant of FILE or FILE:VARIANT; an existing file is not split."""
    file, colon, variant = given.rpartition(":")
    if not colon or Path(given).exists():
        return Path(given), ""
    return Path(file), variant


def read_recipes(file: Path, variant: str = "") -> list[DeploymentRecipe]:
    """Return the recipes of a file, or those of its variants that a name or a pattern selects.

    The variant base is what the others override. Raises PlanError for a file that cannot be read,
    of no known form, or for another engine.
    """
    if variant == BASE and (bases := list(_read_bases(file))):
        return bases
    recipes = list(_read(file))
    if not variant:
        return recipes
    name = variant.removeprefix("zip_override_").removeprefix("override_")
    name = name.replace("[", "_").rstrip("]")
    chosen = [
        one
        for one in recipes
        if fnmatchcase(one.variant, name) or one.variant.startswith(f"{name}_")
    ]
    if not chosen:
        known = ", ".join(one.variant for one in recipes if one.variant) or "none"
        raise PlanError(f"{file}: no variant {variant}", hint=f"Its variants: {known}.")
    return chosen


def _read_bases(file: Path) -> Iterator[DeploymentRecipe]:
    for content in _load(file):
        if srt_slurm.recognises(content):
            yield from srt_slurm.read(content, str(file), base=True)


def _read(file: Path) -> Iterator[DeploymentRecipe]:
    documents = _load(file)
    name = str(file)
    if dynamo.recognises(documents):
        yield from dynamo.read(documents, name, file.parent)
        return
    found = False
    for content in documents:
        if srt_slurm.recognises(content):
            found = True
            yield from srt_slurm.read(content, name)
        elif trtllm_files.recognises_benchmark(content):
            found = True
            yield trtllm_files.read_benchmark(content, name)
        elif trtllm_files.recognises(content):
            found = True
            yield trtllm_files.read(content, name, _list_siblings(file))
        elif trtllm_files.is_llm_args(content):
            found = True
            yield trtllm_files.read_llm_args(content, name)
    if not found:
        raise PlanError(f"{file}: no form of a recipe that is known", hint=KNOWN)


def _load(file: Path) -> list[Mapping[str, Any]]:
    """Return the mappings among the documents of a YAML file."""
    import yaml

    try:
        if file.stat().st_size > MOST_BYTES:
            raise PlanError(f"{file}: more than {MOST_BYTES} bytes: this is no recipe")
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from error
    except (UnicodeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PlanError(f"{file}: cannot be read as YAML: {reason}", hint=KNOWN) from error
    return [one for one in documents if isinstance(one, Mapping)]


def _list_siblings(file: Path) -> dict[str, Mapping[str, Any]]:
    """Return the YAML files next to a recipe, which may hold the configs of its servers."""
    found = {}
    for path in sorted(file.parent.glob("*.y*ml")):
        if path != file and path.is_file():
            try:
                documents = _load(path)
            except PlanError:
                continue
            if len(documents) == 1:
                found[path.name] = documents[0]
    return found


TRANSCEIVER = "cache_transceiver_config"
OF_DYNAMO = ("DYN_", "ETCD_", "NATS_")
"""Beginnings of variables that only Dynamo reads."""
NOT_OURS = ("CUDA_VISIBLE_DEVICES", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that the launcher sets, or that a plan must not contain."""
READY_S = 3600
"""The launchers' own limit, which a plan need not repeat."""
MOST_ON_A_NODE = 8
"""GPUs of a node where the recipe does not say."""


class _Notes:
    """Collect what the comments of a plan say."""

    def __init__(self, recipe: DeploymentRecipe) -> None:
        self.unknown, self.left_out = list(recipe.unknown), list(recipe.left_out)


def write_plan(recipe: DeploymentRecipe, source: str, file: Path) -> str:
    """Return the text of a plan file for a recipe of the file `source`."""
    notes = _Notes(recipe)
    launcher = _launcher(recipe, notes)
    model = recipe.model or NO_MODEL
    if recipe.model is None:
        notes.unknown.append("model: the recipe does not name it")
    variant = f", variant {recipe.variant}" if recipe.variant else ""
    title = "" if recipe.name == source else f" {recipe.name}"
    lines = [
        f"# {_one_line(f'From {source}: {recipe.form}{title}{variant}.')}",
        f"# Look at it first: serve-eval run {_one_line(str(file))} --dry-run",
        *_comment("Fill in or check", notes.unknown),
        *_comment("The plan leaves out", notes.left_out),
        "",
        f"model: {json.dumps(model, ensure_ascii=not model.isprintable())}",
        "",
        yaml_source.dump({"launcher": _unshare(launcher)}).rstrip("\n"),
        "",
    ]
    tasks = TASKS.rstrip("\n")
    for name in recipe.tasks:
        tasks += f"\n# The recipe measures {_one_line(name)}: see serve-eval data list tasks"
    return "\n".join(
        [*lines, *_list_lengths(recipe), tasks, "", *PROTOCOL, "", write_verdict(file)]
    )


def _unshare(value: Any) -> Any:
    """Return a copy without parts that stand in several places, which YAML writes as aliases."""
    if isinstance(value, Mapping):
        return {name: _unshare(one) for name, one in value.items()}
    return [_unshare(one) for one in value] if isinstance(value, (list, tuple)) else value


def _comment(title: str, texts: list[str]) -> Iterator[str]:
    if texts:
        yield "#"
        yield f"# {title}:"
        for text in dict.fromkeys(texts):
            yield f"# * {_one_line(text)}"


def _one_line(text: str) -> str:
    """Return a text that cannot end a comment."""
    return "".join(c if c.isprintable() else " " for c in text)


def _list_lengths(recipe: DeploymentRecipe) -> Iterator[str]:
    """Yield a comment about the longest sequence, which recipes for speed keep short."""
    given = [one.config.get("max_seq_len") for one in recipe.groups.values()]
    if sizes := [size for size in given if isinstance(size, int)]:
        yield f"# The servers take at most {min(sizes)} tokens of prompt and answer (max_seq_len)."
    if recipe.concurrency:
        loads = ", ".join(map(str, recipe.concurrency))
        yield f"# The recipe was written for {loads} requests in flight (limits.concurrency)."


def _launcher(recipe: DeploymentRecipe, notes: _Notes) -> dict[str, Any]:
    deployment = _deployment(recipe, notes)
    kind = "trtllm" if recipe.single is not None else "trtllm_disaggregated"
    limit: dict[str, Any] = {}
    if recipe.ready_timeout_s not in (None, READY_S):
        limit["ready_timeout_s"] = float(recipe.ready_timeout_s or 0)
    if not _needs_slurm(recipe):
        if recipe.image is not None:
            notes.left_out.append(
                f"the image {recipe.image}: to run in it, use the launcher container"
            )
        for word in (*recipe.sbatch_args, *recipe.srun_args):
            notes.left_out.append(f"the option of SLURM {word}: the servers are on one machine")
        return {"name": kind, **deployment, **limit}
    launcher: dict[str, Any] = {"name": "slurm"}
    if recipe.gpus_per_node is not None:
        launcher["gpus_per_node"] = recipe.gpus_per_node
    if recipe.image is not None:
        launcher["container"] = {"image": recipe.image, "engine": "pyxis"}
        if mounts := _mounts(recipe):
            launcher["container"]["mounts"] = mounts
    if recipe.sbatch_args:
        launcher["sbatch_args"] = list(recipe.sbatch_args)
    if recipe.srun_args:
        launcher["srun_args"] = list(recipe.srun_args)
    return {**launcher, **limit, kind: deployment}


def _needs_slurm(recipe: DeploymentRecipe) -> bool:
    if recipe.nodes is not None and recipe.nodes > 1:
        return True
    return recipe.gpus > (recipe.gpus_per_node or MOST_ON_A_NODE)


def _mounts(recipe: DeploymentRecipe) -> list[str]:
    own = [f"{recipe.model}:{recipe.model}"] if str(recipe.model).startswith("/") else []
    return [*recipe.mounts, *(one for one in own if one not in recipe.mounts)]


def _deployment(recipe: DeploymentRecipe, notes: _Notes) -> dict[str, Any]:
    """Return the options of the launcher trtllm or trtllm_disaggregated."""
    found: dict[str, Any] = {}
    if recipe.backend is not None:
        found["backend"] = recipe.backend
    if recipe.single is not None:
        if recipe.single.count > 1:
            notes.left_out.append(
                f"{recipe.single.count - 1} of {recipe.single.count} equal servers: the plan starts"
                " one of them"
            )
        return {**found, **_group(recipe.single, "", notes)}
    for name, servers in _transceivers(recipe, notes).items():
        group = {"num_instances": servers.count, **_group(servers, name, notes)}
        if router := recipe.routers.get(name):
            group["router"] = router
        found[name] = group
    if recipe.orchestrator:
        found["orchestrator"] = dict(recipe.orchestrator)
    if recipe.discovery:
        found["discovery"] = True
    return found


def _transceivers(recipe: DeploymentRecipe, notes: _Notes) -> dict[str, Servers]:
    """Return the servers of both sides, each with a backend for the transfer.

    Older files only switch it on, and some set it on one side only.
    """
    groups = recipe.groups
    given = [one.config.get(TRANSCEIVER) for one in groups.values()]
    known = [one for one in given if isinstance(one, Mapping)]
    if not known:
        return groups
    found = {}
    for name, one in groups.items():
        own = one.config.get(TRANSCEIVER)
        section = dict(own if isinstance(own, Mapping) else known[0])
        if section.pop("enable_cache_transceiver", None) is not None or not section.get("backend"):
            section.setdefault("backend", "DEFAULT")
            notes.unknown.append(f"launcher.{name}: the recipe names no backend of {TRANSCEIVER}")
        found[name] = replace(one, config={**one.config, TRANSCEIVER: section})
    return found


def _group(servers: Servers, name: str, notes: _Notes) -> dict[str, Any]:
    where = f"launcher.{name}" if name else "launcher"
    found: dict[str, Any] = {} if servers.model is None else {"model": servers.model}
    if env := _env(servers.env, where, notes):
        found["env"] = env
    if config := _drop_meaningless(servers.config, where, notes):
        found["config"] = config
    if servers.extra_args:
        found["extra_args"] = list(servers.extra_args)
    if servers.gpus is not None and servers.gpus != servers.ranks:
        notes.unknown.append(
            f"{where}: the recipe gives {servers.gpus} GPUs to a server whose config has"
            f" {servers.ranks} ranks"
        )
    return found


def _env(env: Mapping[str, str], where: str, notes: _Notes) -> dict[str, str]:
    kept = {}
    if foreign := [name for name in env if name.startswith(OF_DYNAMO)]:
        notes.left_out.append(f"{where}.env {', '.join(foreign)}: for Dynamo only")
    for name, value in env.items():
        if effect := judge_setting(name, value):
            notes.left_out.append(f"{where}.env {name}={value}: it {effect}")
        elif name in foreign:
            continue
        elif name in NOT_OURS:
            notes.left_out.append(f"{where}.env {name}: the launcher sets it, or it is a secret")
        else:
            kept[name] = value
    return kept


def _drop_meaningless(config: Any, where: str, notes: _Notes) -> Any:
    """Return a config without the settings under which answers mean nothing."""
    if not isinstance(config, Mapping):
        return config
    kept = {}
    for name, value in config.items():
        if effect := judge_setting(str(name), value):
            notes.left_out.append(f"{where}.config {name}: {value}: it {effect}")
        else:
            kept[name] = _drop_meaningless(value, where, notes)
    return kept
