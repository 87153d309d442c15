"""Merge layers of plan fragments, each with its place in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_eval.evaluation.plan.parse import SECTIONS
from serve_eval.yaml_source import Document

ADDRESSES = ("base_url", "launcher")
"""Two ways to name the endpoint. One in an upper layer replaces both in lower layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Keys of a plan. `place(*path)` returns a prefix for messages, such as "suite.yaml:3: "."""

    content: Mapping[str, Any]
    place: Callable[..., str]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def places(document: Document, *start: str | int, skip: int = 0) -> Callable[..., str]:
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
