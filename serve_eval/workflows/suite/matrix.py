"""Combine the values of a suite's axes, layer by layer, each with its place in the file.

An axis has the name of a plan key, or `endpoint` (a base URL or a launcher), and lists values of
that key. A mapping with `attributes`, `label` or plan keys is a plan fragment instead, so that
several keys can change together. A mapping that fits an axis such as protocol or limits is its
value; one that mixes its fields with plan keys is refused:

    matrix:
      model: [org/small, {model: org/large, limits: {concurrency: 16}, attributes: {size: 70B}}]
      accuracy_spec: [{}, {quant_algo: FP8}]
      tasks: [mmlu, gsm8k]            # one task per run; [[mmlu, gsm8k]] is both in one run

The axis sampling_seed lists seeds, and sets protocol.seed; it is no attribute of a deployment, so
that tables merge its runs.

An axis with any other name contains only fragments, and its labels become the attribute of that
name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Any

from serve_eval.frozen import freeze
from serve_eval.plan.options import SAMPLING_SEED, list_protocol_fields
from serve_eval.plan.plan_file import KEYS, SECTIONS
from serve_eval.plugins.registry import nearest
from serve_eval.schema import Plan
from serve_eval.yaml_source import YamlDocument

ENDPOINT, LABEL, ATTRIBUTES = "endpoint", "label", "attributes"
TASK_LABEL = "task_label"
"""Key of a plan in a suite: the part of the run's name that tells only its tasks."""
AXES = (*KEYS, ENDPOINT, SAMPLING_SEED)
"""The axes whose values need not be plan fragments."""
HOLD_MAPPINGS = (*SECTIONS, "protocol", "launcher", "verdict", "samples", "repeats", "expect")
"""The axes whose values may be mappings."""
MOST_COMBINATIONS = 10_000
"""Largest number of combinations, before any is excluded."""
PART_LENGTH = 60
"""Largest number of characters of one part of a run's name."""
NAME_LENGTH = 150
"""Largest number of characters of a run's name, which is also a folder name. Longer names are cut
and numbered."""


@freeze
class AxisValue:
    """A value of an axis: its part of a run's name, and its plan fragment."""

    label: str
    layer: Layer


Problem = tuple[tuple[str | int, ...], str]


def axes(
    matrix: Mapping[str, Any], document: YamlDocument
) -> tuple[dict[str, list[AxisValue]], list[Problem]]:
    """Return the axes in their order, and their problems as (path below `matrix`, message)."""
    found: dict[str, list[AxisValue]] = {}
    problems: list[Problem] = []
    for axis, values in matrix.items():
        if not isinstance(values, list) or not values:
            problems.append(((axis,), "expected a list of one or more values"))
            continue
        read = [_choice(axis, i, value, document) for i, value in enumerate(values)]
        problems += [problem for one in read if isinstance(one, list) for problem in one]
        found[axis] = _distinct(axis, [one for one in read if isinstance(one, AxisValue)])
    count = math.prod(map(len, found.values()))
    if count > MOST_COMBINATIONS:
        problems.append(((), f"has {count} combinations; the limit is {MOST_COMBINATIONS}"))
    return found, problems


def combinations(found: Mapping[str, Sequence[AxisValue]]) -> Iterator[tuple[str, list[Layer]]]:
    """Yield the name and layers of every combination.

    A later axis overrides an earlier one. An axis with a single value is left out of the name.
    """
    several = [axis for axis, choices in found.items() if len(choices) > 1] or list(found)
    for chosen in product(*found.values()):
        by_axis = dict(zip(found, chosen, strict=True))
        name = "_".join(by_axis[axis].label for axis in several)[:NAME_LENGTH].rstrip("-._")
        yield name, [choice.layer for choice in chosen]


def _choice(axis: str, i: int, value: Any, document: YamlDocument) -> AxisValue | list[Problem]:
    if axis == SAMPLING_SEED:
        return _seed(i, value, document)
    if isinstance(value, Mapping) and axis in HOLD_MAPPINGS and (message := _mixes(axis, value)):
        return [((axis, i), message)]
    if _is_fragment(axis, value) or axis not in AXES:
        return _fragment(axis, i, value, document)
    if axis == ENDPOINT and not isinstance(value, str | Mapping):
        return [((axis, i), "expected a base URL, a launcher, or a plan fragment")]
    key = axis if axis != ENDPOINT else "base_url" if isinstance(value, str) else "launcher"
    content = {key: [value] if key == "tasks" and not isinstance(value, list) else value}
    place = places(document, "matrix", axis, i, skip=1)
    return AxisValue(label=label(content), layer=Layer(content=content, place=place))


def _seed(i: int, value: Any, document: YamlDocument) -> AxisValue | list[Problem]:
    """Return a sampling seed as an axis value without attributes."""
    if not isinstance(value, int) or isinstance(value, bool):
        return [((SAMPLING_SEED, i), f"expected a seed, a whole number, not {value!r}")]
    content = {"protocol": {"seed": value}}
    place = places(document, "matrix", SAMPLING_SEED, i, skip=2)
    layer = Layer(content=content, place=place, sampling_seed=value)
    return AxisValue(label=label(content), layer=layer)


def _is_fragment(axis: str, value: Any) -> bool:
    """Return True for a mapping with plan keys that are no fields of its axis."""
    if not isinstance(value, Mapping) or "name" in value:
        return False
    return any(key in (*KEYS, LABEL, ATTRIBUTES) for key in value if key not in _fields(axis))


def _fields(axis: str) -> Sequence[str]:
    """Return the fields of an axis that might be taken for plan keys."""
    return list_protocol_fields() if axis == "protocol" else ()


def _mixes(axis: str, value: Mapping[str, Any]) -> str:
    """Return the message for a mapping that is both a value of its axis and a plan fragment."""
    if axis in value or not _is_fragment(axis, value):
        return ""
    plain = [key for key in (*KEYS, LABEL, ATTRIBUTES) if key not in _fields(axis)]
    own = {key: inner for key, inner in value.items() if key not in plain}
    if not own:
        return ""
    others = ", ".join(str(key) for key in value if key in plain)
    meant = json.dumps(own, default=str).replace('"', "")
    return (
        f"{', '.join(map(str, own))} together with {others}: did you mean `{axis}: {meant}`? Plan"
        " keys, label and attributes stand next to it"
    )


def _fragment(axis: str, i: int, value: Any, document: YamlDocument) -> AxisValue | list[Problem]:
    own = axis not in AXES
    if not isinstance(value, Mapping) or not any(
        key in value for key in (*KEYS, LABEL, ATTRIBUTES)
    ):
        if own:
            known = (
                f" Did you mean the axis `protocol: [{{{axis}: {value}}}]`?"
                if axis in list_protocol_fields()
                else nearest(axis, AXES)
            )
            message = f"{axis} is not a plan key, so its values must be plan fragments.{known}"
            return [((axis, i), message)]
        return [((axis, i), "expected a plan fragment")]
    given = value.get(LABEL)
    if given is not None and not isinstance(given, str | int | float):
        return [((axis, i, LABEL), "expected a word")]
    content = {key: inner for key, inner in value.items() if key not in (LABEL, ATTRIBUTES)}
    attributes = value.get(ATTRIBUTES) or {}
    if not isinstance(attributes, Mapping):
        return [((axis, i, ATTRIBUTES), "expected a mapping")]
    telling = {
        key: content[key] for key in (ADDRESSES if axis == ENDPOINT else (axis,)) if key in content
    }
    name = slug("" if given is None else str(given)) or label(telling or content)
    if own and axis not in attributes:
        attributes = {axis: name if given is None else given, **attributes}
    layer = Layer(content=content, place=places(document, "matrix", axis, i), attributes=attributes)
    return AxisValue(label=name, layer=layer)


def _distinct(axis: str, choices: Sequence[AxisValue]) -> list[AxisValue]:
    """Return the choices with unique labels."""
    names = unique([choice.label for choice in choices])
    return [
        replace(choice, label=name, layer=_name_tasks(axis, choice.layer, name))
        for choice, name in zip(choices, names, strict=True)
    ]


def _name_tasks(axis: str, layer: Layer, name: str) -> Layer:
    """Return a layer that says that the name of its value tells only tasks, if it does."""
    only_tasks = axis == "tasks" and layer.content.keys() == {"tasks"} and not layer.attributes
    return replace(layer, task_label=name) if only_tasks else layer


def unique(names: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Return the names, made unique with -2, -3, ... among themselves and `taken`.

    The comparison ignores case, as some file systems do.
    """
    seen = {name.lower() for name in taken}
    found = []
    for name in names:
        number, free = 1, name
        while free.lower() in seen:
            number += 1
            free = f"{name}-{number}"
        seen.add(free.lower())
        found.append(free)
    return found


def label(content: Mapping[str, Any]) -> str:
    """Return a short name for a plan fragment, safe as a part of a file name."""
    parts = [slug(_word(key, value)) for key, value in content.items() if value is not None]
    return "_".join(part for part in parts if part)[:PART_LENGTH].rstrip("-._") or "default"


def _word(key: str, value: Any) -> str:
    if key == "model":
        return str(value).rstrip("/").rsplit("/", 1)[-1]
    if key == "base_url":
        return re.sub(r"^\w+://|/v1/?$|/$", "", str(value))
    if key == "tasks" and isinstance(value, list):
        return "-".join(
            next(iter(task), "") if isinstance(task, Mapping) else str(task) for task in value
        )
    if isinstance(value, Mapping):
        if key in ("launcher", "verdict"):
            return str(value.get("name", next(iter(value), key)))
        words = value.values() if key == "accuracy_spec" else (f"{k}-{v}" for k, v in value.items())
        return "-".join(dict.fromkeys(str(word) for word in words if word is not None)) or "default"
    return str(value) if key in ("launcher", "verdict") else f"{key}-{value}"


def slug(text: str) -> str:
    """Return a text of letters, digits, dots, dashes and underscores, without edge punctuation."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:PART_LENGTH].rstrip("-._")


ADDRESSES = ("base_url", "launcher")
"""Two ways to name the endpoint. One in an upper layer replaces both in lower layers."""


@freeze
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
