"""Rewrite recipe files of srt-slurm in its first schema: variants expanded, roles translated.

A file with `base` has a variant per `override_NAME`, which is merged into the base, and one per
position of the lists in `zip_override_NAME`. A file with `sweep` has one per combination of its
values, which stand where the text has {NAME}.

Schema 2 has the servers of a kind under `roles.prefill`, `roles.decode` or `roles.agg` (nodes,
workers, gpus, env, args, extra_args, an engine and a container of their own), and the engine under
`engine`. The first schema has the same under `resources` and `backend`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.workflows.init.recipe import as_list, as_mapping, refuse_engine

BASE, OVERRIDE, ZIP, SWEEP = "base", "override_", "zip_override_", "sweep"
MOST_VARIANTS = 1000


def list_variants(content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each variant of a recipe file with its name ("": the file has one only).

    A base with overrides is itself no variant, see `list_bases`. Raises PlanError for lists of
    unlike lengths.
    """
    if not isinstance(content.get(BASE), Mapping):
        yield from _list_swept("", dict(content))
        return
    found = False
    for key, section in content.items():
        if not isinstance(section, Mapping):
            continue
        if key.startswith(ZIP):
            for i, one in enumerate(_unzip(section, key)):
                found = True
                yield from _list_swept(f"{key.removeprefix(ZIP)}_{i}", _merge(content[BASE], one))
        elif key.startswith(OVERRIDE):
            found = True
            yield from _list_swept(key.removeprefix(OVERRIDE), _merge(content[BASE], section))
    if not found:
        yield from _list_swept("", dict(content[BASE]))


def list_bases(content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the base of a file, which srtctl runs as FILE:base; nothing for a file without one."""
    if isinstance(content.get(BASE), Mapping):
        yield from _list_swept(BASE, dict(content[BASE]))


def _merge(base: Any, over: Any) -> Any:
    """Return `base` with what `over` sets. A null removes a key; lists are replaced."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return copy.deepcopy(over)
    merged = {name: copy.deepcopy(value) for name, value in base.items()}
    for name, value in over.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _unzip(section: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return a section per position of its lists. A list of one value counts for each of them."""
    lengths = {len(one) for one in _list_lists(section)} - {1}
    if len(lengths) > 1 or 0 in lengths:
        raise PlanError(f"{where}: lists of {sorted(lengths)} values cannot be read side by side")
    count = min(lengths.pop() if lengths else 1, MOST_VARIANTS)
    return [_pick(section, i) for i in range(count)]


def _list_lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _list_lists(one)
    elif isinstance(value, list):
        yield value


def _pick(value: Any, i: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _pick(one, i) for name, one in value.items()}
    if isinstance(value, list):
        return value[i if len(value) > 1 else 0]
    return value


def _list_swept(name: str, content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    swept = content.pop(SWEEP, None)
    if not isinstance(swept, Mapping) or not swept:
        yield name, content
        return
    values = [one if isinstance(one, list) else [one] for one in swept.values()]
    for chosen in itertools.islice(itertools.product(*values), MOST_VARIANTS):
        given = dict(zip(swept, chosen, strict=True))
        told = "_".join(f"{key}{_short(value)}" for key, value in given.items())
        yield "_".join(filter(None, (name, told))), _fill(content, given)


def _fill(value: Any, given: Mapping[str, Any]) -> Any:
    """Return a value with the placeholders replaced, also those that YAML reads as a mapping."""
    if isinstance(value, Mapping):
        if len(value) == 1 and (key := next(iter(value))) in given and value[key] is None:
            return given[key]
        return {name: _fill(one, given) for name, one in value.items()}
    if isinstance(value, list):
        return [_fill(one, given) for one in value]
    if isinstance(value, str):
        for name, chosen in given.items():
            if value == f"{{{name}}}":
                return chosen
            value = value.replace(f"{{{name}}}", str(chosen))
    return value


def _short(value: Any) -> str:
    return "".join(c if c.isalnum() or c in ".-" else "-" for c in str(value))


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
