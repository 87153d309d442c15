"""Expand a recipe file of srt-slurm with several variants: overrides and sweeps. Pure.

A file with `base` has a variant per `override_NAME`, which is merged into the base, and one per
position of the lists in `zip_override_NAME`. A file with `sweep` has one per combination of its
values, which stand where the text has {NAME}.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.errors import PlanError

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
