"""Merge layers of plan fragments, each with its place in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_eval.plan.plan_file import SECTIONS
from serve_eval.schema import Plan
from serve_eval.yaml_source import YamlDocument

ADDRESSES = ("base_url", "launcher")
"""Two ways to name the endpoint. One in an upper layer replaces both in lower layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Keys of a plan. `place(*path)` returns a prefix for messages, such as "suite.yaml:3: ".

    `sampling_seed` is the seed that every task must be asked with (None: no such axis).
    `task_label` is the part of the run's name that says only which tasks it asks.
    """

    content: Mapping[str, Any]
    place: Callable[..., str]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    sampling_seed: int | None = None
    task_label: str = ""


def places(document: YamlDocument, *start: str | int, skip: int = 0) -> Callable[..., str]:
    """Return a function that maps a path below `start` in a document to a message prefix.

    The first `skip` keys of the path are not in the file.
    """
    return lambda *path: f"{document.name}:{document.line(*start, *path[skip:])}: "


def merge(layers: Sequence[Layer]) -> dict[str, Any]:
    """Merge layers, lowest first, into the content of a plan file.

    Sections such as limits are merged field by field. Other keys are replaced as a whole.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if any(layer.content.get(key) is not None for key in ADDRESSES):
            merged = {key: value for key, value in merged.items() if key not in ADDRESSES}
        for key, value in layer.content.items():
            lower = merged.get(key)
            if (
                key in (*SECTIONS, "protocol")
                and isinstance(value, Mapping)
                and isinstance(lower, Mapping)
            ):
                merged[key] = {**lower, **value}
            else:
                merged[key] = value
    return merged


def attributes(layers: Sequence[Layer]) -> dict[Any, Any]:
    """Merge the attributes of all layers, lowest first."""
    return {key: value for layer in layers for key, value in layer.attributes.items()}


def find_other_seeds(layers: Sequence[Layer], plan: Plan) -> list[str]:
    """Return a problem for each task that another seed than that of the axis is set for."""
    return [
        f"{layer.place()}sampling_seed: {task.name} would be asked with seed"
        f" {task.options.get('seed')}, not {layer.sampling_seed}: remove that other seed"
        for layer in layers
        if layer.sampling_seed is not None
        for task in plan.tasks
        if task.options.get("seed") != layer.sampling_seed
    ]


def line(layers: Sequence[Layer], otherwise: Callable[..., str]) -> Callable[..., str]:
    """Return a function that locates a merged path in the highest layer that has it."""

    def find(*path: str | int) -> str:
        for depth in (2, 1):
            for layer in reversed(layers):
                if path and _has(layer.content, path[:depth]):
                    return layer.place(*path)
        return otherwise()

    return find


def _has(content: Any, path: Sequence[str | int]) -> bool:
    for key in path:
        if not isinstance(content, Mapping) or key not in content:
            return False
        content = content[key]
    return True
