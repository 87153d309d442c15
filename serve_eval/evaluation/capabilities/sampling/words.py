"""Say in words what a server adds to requests, and how two servers differ in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.evaluation.capabilities.sampling.sending import list_kept
from serve_eval.schema import SamplingDefault, SamplingDefaults, Task

DIFFER = "the servers' sampling defaults differ"
"""The beginning of every sentence about two servers."""


def describe_added(found: SamplingDefaults) -> str:
    """Return the fields that the server adds, with values from its log; empty if there are none."""
    return ", ".join(_name(one) for one in found.added)


def _name(one: SamplingDefault) -> str:
    return one.sent_as if one.value is None else f"{one.sent_as} {one.value:g}"


def describe_defaults(found: SamplingDefaults) -> list[str]:
    """Return lines for the page and the details: what is added, sent, and not known."""
    lines = []
    if added := describe_added(found):
        lines.append(f"the server adds {added} to requests that lack it")
    elif all(one.adds is False for one in found.fields):
        lines.append("the server adds nothing to requests")
    if found.sent:
        told = ", ".join(f"{name} {value:g}" for name, value in found.sent.items())
        lines.append(f"sent with neutral values: {told}")
    for obedience in ("ignored", "refused"):
        if names := [one.sent_as for one in found.fields if one.obedience == obedience]:
            lines.append(f"{obedience} by the server: {', '.join(names)}")
    if unknown := [one.sent_as for one in found.possible]:
        why = f" ({found.unknown})" if found.unknown else ""
        lines.append(f"the server may add {', '.join(unknown)}: not known{why}")
    if found.log:
        lines.append(f"its log: {found.log}")
    return lines


def warn_of_defaults(found: SamplingDefaults | None, tasks: Sequence[Task]) -> list[str]:
    """Return a warning if the server adds something that changes the answers of a task."""
    if found is None:
        return []
    kept = {name: None for task in tasks for name in list_kept(found, task)}
    if not kept:
        return []
    names = ", ".join(_name(one) for one in found.added if one.name in kept)
    how = (
        "--server-defaults neutral replaces it"
        if found.policy == "keep"
        else "no value of a request replaces it, so change the server"
    )
    return [
        f"the server adds {names} to requests that lack it, which changes answers"
        f" (generation_config.json?): {how}"
    ]


def name_difference(
    a: SamplingDefaults | None, b: SamplingDefaults | None, names: tuple[str, str] = ("A", "B")
) -> str:
    """Return a sentence if one of two servers adds what the other does not, else an empty text."""
    if a is None or b is None:
        return ""
    told = []
    for one, other in zip(a.fields, b.fields, strict=True):
        if one.adds is None or other.adds is None:
            continue
        if one.adds != other.adds:
            told.append(
                f"{names[0]} adds {_name(one)}" if one.adds else f"{names[1]} adds {_name(other)}"
            )
        elif one.adds and one.value != other.value and None not in (one.value, other.value):
            told.append(f"{names[0]} adds {_name(one)}, {names[1]} {_name(other)}")
    return f"{DIFFER}: {', '.join(told)}" if told else ""
