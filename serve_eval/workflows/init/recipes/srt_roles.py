"""Read the `roles` of srt-slurm's schema 2 as the sections of its first schema. Pure.

Schema 2 has the servers of a kind under `roles.prefill`, `roles.decode` or `roles.agg` (nodes,
workers, gpus, env, args, extra_args, an engine and a container of their own), and the engine under
`engine`. The first schema has the same under `resources` and `backend`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.workflows.init.recipes.recipe import as_list, as_mapping, refuse_engine

ROLES = {"prefill": "prefill", "decode": "decode", "agg": "aggregated"}
"""The names of a role among the resources, and in the section of the engine."""
COLOCATE = "colocate"
"""A value of `roles.decode.nodes`: the servers take GPUs that those for prefill leave free."""
READ = ("nodes", "workers", "gpus", "env", "args", "extra_args", "engine", "container")
NOT_OURS = {
    "kv_events": "Dynamo's router reads it",
    "sidecar": "it starts Dynamo next to a server",
    "restart": "a server that ends fails the run",
    "critical": "a server that ends fails the run",
}
"""Keys of a role that a plan has no place for, with the reason."""


def recognises(base: Mapping[str, Any]) -> bool:
    """Return True for a recipe with roles."""
    known = "engine" in base or "resources" in base or base.get("schema") == 2
    return isinstance(base.get("roles"), Mapping) and known


def translate(content: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe without roles, and what of its roles has no place in a plan.

    Raises PlanError for roles that srt-slurm refuses too, and for engines other than trtllm.
    """
    if not recognises(content):
        return dict(content), []
    if isinstance(content.get("backend"), Mapping):
        where = f"{where}: backend and roles"
        raise PlanError(f"{where}: a recipe has one of them", hint="Write it with srtctl migrate.")
    roles = {
        name: as_mapping(role, f"{where}: roles.{name}")
        for name, role in as_mapping(content["roles"], f"{where}: roles").items()
    }
    if unknown := roles.keys() - ROLES:
        raise PlanError(
            f"{where}: roles.{sorted(map(str, unknown))[0]} is no role of srt-slurm",
            hint=f"Its roles: {', '.join(ROLES)}.",
        )
    if "agg" in roles and len(roles) > 1:
        raise PlanError(f"{where}: roles: either agg, or prefill and decode")
    for engine in _list_engines(content, roles):
        if engine != "trtllm":
            raise refuse_engine(engine, where)
    resources = as_mapping(content.get("resources"), f"{where}: resources")
    backend: dict[str, Any] = {"type": "trtllm", "trtllm_config": {}}
    for name, role in roles.items():
        resources |= _resources(name, role, where)
        mode = ROLES[name]
        backend["trtllm_config"][mode] = role.get("args") or {}
        backend[f"{mode}_environment"] = role.get("env")
        backend[f"{mode}_extra_args"] = as_list(
            role.get("extra_args"), f"{where}: roles.{name}.extra_args"
        )
    model = _model(content, roles, where)
    own = {"resources": resources, "backend": backend, "model": model}
    return {**content, **own}, list(_list_left_out(content, roles, where))


def _list_engines(content: Mapping[str, Any], roles: Mapping[str, Any]) -> Iterator[str]:
    """Yield the engine of the recipe, or those of its roles; srt-slurm's own default is SGLang."""
    given = [content.get("engine")]
    if given == [None]:
        given = [role.get("engine") for role in roles.values()]
    for one in given or [None]:
        name = one.get("type") if isinstance(one, Mapping) else one
        yield str(name or "sglang").lower()


def _resources(name: str, role: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = {
        f"{name}_nodes": role.get("nodes"),
        f"{name}_workers": role.get("workers"),
        f"gpus_per_{name}": role.get("gpus"),
    }
    if str(role.get("nodes")).strip().lower() == COLOCATE:
        if name != "decode":
            raise PlanError(f"{where}: roles.{name}.nodes: only decode can colocate")
        found[f"{name}_nodes"] = 0
    return {key: value for key, value in found.items() if value is not None}


def _model(content: Mapping[str, Any], roles: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the model with the image that all roles share; none if they differ."""
    model = as_mapping(content.get("model"), f"{where}: model")
    images = {str(role.get("container") or model.get("container") or "") for role in roles.values()}
    if len(images) > 1:
        raise PlanError(
            f"{where}: roles.*.container: {', '.join(sorted(images))}: a plan has one image",
            hint="Give the roles one image, or start the servers, then serve-eval setup init URL.",
        )
    return {**model, "container": next(iter(images), "")}


def _list_left_out(
    content: Mapping[str, Any], roles: Mapping[str, Any], where: str
) -> Iterator[str]:
    for name, role in roles.items():
        for key in role:
            if reason := NOT_OURS.get(key):
                yield f"roles.{name}.{key}: {reason}"
            elif key not in READ:
                yield f"roles.{name}.{key}: a plan has no such key"
    for service in as_list(content.get("services"), f"{where}: services"):
        told = service.get("type") or service.get("name") if isinstance(service, Mapping) else None
        yield f"the service {told or service}: start it yourself if the servers need it"
