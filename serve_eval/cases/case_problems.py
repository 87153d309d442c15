"""Find problems in the form of a single case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from serve_eval.cases import form


def scalar_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the plain values of an input that may be part of a prompt."""
    items = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        yield path
        return
    for key, inner in items:
        if path or key not in ("tools", "tool_choice"):
            yield from scalar_paths(inner, (*path, key))


def has_cases(shared: Mapping[str, Any]) -> bool:
    """Return True if a mapping contains a list of cases, as in a task whose `cases` is misspelt."""
    return any(
        isinstance(one, Mapping) and "case" in one and "input" in one
        for value in shared.values()
        if isinstance(value, list)
        for one in value
    )


def case_problems(content: Any, *, strict: bool) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield the problems of a case's form as (keys, message).

    Without `strict` it may have other keys, as BioChatter's cases do.
    """
    if not isinstance(content, Mapping):
        yield (), "expected a mapping with case, input and expected"
        return
    for key, message in form.problems(
        dict(content), form.Case, leave=("input", "sampling"), strict=strict
    ):
        yield (key,), message
    for key, kind in (("input", form.Input), ("sampling", form.OwnSampling)):
        if key not in content:
            continue
        if not isinstance(content[key], Mapping):
            yield (
                (key,),
                "expected a mapping" + (" such as {prompt: ...}" if key == "input" else ""),
            )
            continue
        for inner, message in form.problems(dict(content[key]), kind):
            more = (
                " (the sampling of a task accepts more keys)"
                if key == "sampling" and "unknown" in message
                else ""
            )
            yield (key, inner), message + more
