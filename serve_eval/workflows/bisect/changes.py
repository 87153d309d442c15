"""List the options in which two plans differ, and mix the two plans.

Options are the leaves of the launcher's options, and what the client does: the model, the
connection and the limits. A list is one value, and so is a mapping that only one side has: half of
it would hardly be valid. What the runs ask is that of the good plan for all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import msgspec

from serve_eval.client.connection import looks_secret
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import BisectionChange, Connection, Limits, Plan, Spec

LAUNCHER = "launcher"
ABSENT: Final = object()
"""The value of an option that a side does not set."""
_ORDERS = frozenset({"order", "order_seed"})
"""Limits that belong to the search: every configuration is asked in a random order."""
_SHOWN = 60
"""Characters of a value that are shown."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """An option in which the sides differ: its path, its name, and both values."""

    path: Path
    name: str
    good: Any
    bad: Any


@dataclass(frozen=True)
class Change:
    """Leaves that change together, under one name."""

    name: str
    leaves: tuple[Leaf, ...]

    @property
    def shown(self) -> BisectionChange:
        """The change as text, without the values of secrets."""
        sides = (
            [", ".join(_text(leaf, getattr(leaf, side)) for leaf in self.leaves)]
            for side in ("good", "bad")
        )
        [good], [bad] = sides
        names = tuple(leaf.name for leaf in self.leaves)
        return BisectionChange(name=self.name, options=names, good=good, bad=bad)


def list_changes(
    good: Plan, bad: Plan, *, keep: Sequence[str] = (), together: Sequence[Sequence[str]] = ()
) -> list[Change]:
    """Return the changes from the good plan to the bad one.

    Options in `keep` keep the good value everywhere. Those of one list in `together` change at
    once. A name also stands for all options below it. Raises PlanError for different launchers and
    for names that no differing option has.
    """
    if good.launcher.name != bad.launcher.name:
        raise PlanError(
            f"the good plan names the launcher {good.launcher.name!r}, the bad one"
            f" {bad.launcher.name!r}",
            hint="Both need the same launcher: only its options are searched.",
        )
    leaves = list(_name(_differing(_describe(good), _describe(bad))))
    problems: list[str] = []
    kept = {leaf.path for name in keep for leaf in _select(leaves, name, "bisect.keep", problems)}
    leaves = [leaf for leaf in leaves if leaf.path not in kept]
    groups = {leaf.path: [leaf] for leaf in leaves}
    names: dict[int, str] = {}
    for listed in together:
        chosen = [
            leaf for one in listed for leaf in _select(leaves, one, "bisect.together", problems)
        ]
        merged = list({leaf.path: leaf for old in chosen for leaf in groups[old.path]}.values())
        groups |= {leaf.path: merged for leaf in merged}
        names[id(merged)] = "+".join(listed)
    if problems:
        raise PlanError(problems)
    once = {id(group): group for group in groups.values()}
    return [Change(names.get(key, group[0].name), tuple(group)) for key, group in once.items()]


def mix(good: Plan, changes: Sequence[Change]) -> Plan:
    """Return the good plan with these changes."""
    content = copy.deepcopy(_describe(good))
    for leaf in (leaf for change in changes for leaf in change.leaves):
        _put(content, leaf.path, leaf.bad)
    return replace(
        good,
        model=content["model"],
        launcher=Spec(name=good.launcher.name, options=content[LAUNCHER]),
        connection=Connection(**content["connection"]),
        limits=replace(Limits(**{**asdict(good.limits), **content["limits"]})),
    )


def _describe(plan: Plan) -> dict[str, Any]:
    limits = {key: value for key, value in asdict(plan.limits).items() if key not in _ORDERS}
    return {
        LAUNCHER: dict(plan.launcher.options),
        "model": plan.model,
        "connection": asdict(plan.connection),
        "limits": limits,
    }


def _differing(
    good: Mapping[str, Any], bad: Mapping[str, Any], path: Path = ()
) -> Iterator[tuple[Path, Any, Any]]:
    for key in dict.fromkeys((*good, *bad)):
        a, b = good.get(key, ABSENT), bad.get(key, ABSENT)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differing(a, b, (*path, str(key)))
        elif a is ABSENT or b is ABSENT or a != b or isinstance(a, bool) is not isinstance(b, bool):
            yield (*path, str(key)), a, b


def _name(found: Iterator[tuple[Path, Any, Any]]) -> Iterator[Leaf]:
    """Yield the leaves with their names: launcher options without a prefix, unless it is needed."""
    client = {"model", "connection", "limits"}
    for path, good, bad in found:
        own = path[0] == LAUNCHER and path[1] not in client
        yield Leaf(path, ".".join(path[1:] if own else path), good, bad)


def _select(leaves: Sequence[Leaf], name: str, flag: str, problems: list[str]) -> list[Leaf]:
    wanted = name.removeprefix(f"{LAUNCHER}.")
    found = [
        leaf
        for leaf in leaves
        if f"{leaf.name}.".removeprefix(f"{LAUNCHER}.").startswith(f"{wanted}.")
    ]
    if not found:
        known = [leaf.name for leaf in leaves]
        problems.append(
            f"{flag}: the plans do not differ in {name!r}.{nearest(name, known)}"
            f" They differ in: {', '.join(known) or 'nothing'}"
        )
    return found


def _put(content: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    if value is ABSENT:
        content.pop(path[-1], None)
    else:
        content[path[-1]] = copy.deepcopy(value)


def _text(leaf: Leaf, value: Any) -> str:
    if value is ABSENT:
        return "not set"
    if looks_secret(leaf.path[-1]):
        return "***"
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
