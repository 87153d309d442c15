"""List the configurations of a search: mixtures of two plans, or one plan at steps in a row.

Options are the leaves of the launcher's options, and what the client does: the model, the
connection and the limits. A list is one value, and so is a mapping that only one side has: half of
it would hardly be valid. All runs ask what the good plan asks. The rules of a
bisection are its options.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final

import msgspec

from serve_eval.client.connection import looks_secret
from serve_eval.errors import PlanError
from serve_eval.evaluation.shared_server import server_key
from serve_eval.frozen import freeze
from serve_eval.plugins.registry import nearest
from serve_eval.plugins.setting import Setting
from serve_eval.schema import BisectionChange, BisectionSuspect, Connection, Limits, Plan, Spec
from serve_eval.stats.noisy_search import SearchSpace, Suspect, space_of_options, space_of_steps


@freeze
class BisectRules:
    """Choose the drop that counts, and when to give up (None: never)."""

    title: ClassVar[str] = "Test and budget"
    command: ClassVar[str] = "bisect"
    margin: Annotated[
        float | None,
        Setting(
            "Drop in points that counts as worse (default: half of the drop that the bad"
            " configuration shows).",
            metavar="POINTS",
        ),
    ] = None
    budget_starts: Annotated[
        int | None,
        Setting(
            "Start at most N servers.",
            metavar="N",
        ),
    ] = None
    budget_gpu_hours: Annotated[
        float | None,
        Setting(
            "Begin no further step after this many GPU hours.",
            metavar="HOURS",
            flag=False,
        ),
    ] = None

    def check(self) -> None:
        """Raise PlanError for a number that is out of range."""
        if self.margin is not None and not 0 < self.margin < 100:
            raise PlanError("--margin must be a positive number of points, such as 2")
        if self.budget_starts is not None and self.budget_starts < 2:
            raise PlanError("--budget-starts must be 2 or more: both sides start once")
        if self.budget_gpu_hours is not None and not self.budget_gpu_hours > 0:
            raise PlanError("bisect.budget_gpu_hours must be above 0")


PLACEHOLDER = "{step}"
GOOD, BAD = "good", "bad"


@dataclass(frozen=True)
class Configurations:
    """The search space with the plan of each configuration, and names for people.

    `changes` are the options in order, or the steps after the good one. `first` is the name of the
    good configuration and `last` that of the bad one.
    """

    space: SearchSpace
    changes: tuple[BisectionChange, ...]
    make: Callable[[int], Plan]
    first: str = GOOD
    last: str = BAD
    _keys: dict[int, str] = field(default_factory=dict)

    @property
    def good(self) -> Plan:
        """The plan of the good configuration."""
        return self.make(0)

    def server_of(self, configuration: int) -> str:
        """Return a text that is the same for configurations that can use the same server."""
        if configuration not in self._keys:
            self._keys[configuration] = server_key(self.make(configuration))
        return self._keys[configuration]

    def list_changed(self, configuration: int) -> tuple[str, ...]:
        """Return the names of the options with the bad value, or the step."""
        if self.space.ordered:
            return (self.changes[configuration - 1].name if configuration else self.first,)
        return tuple(change.name for i, change in enumerate(self.changes) if configuration >> i & 1)

    def describe(self, configuration: int) -> str:
        """Return a configuration in words."""
        if configuration == 0:
            return f"{self.first} again"
        if self.space.ordered:
            return self.changes[configuration - 1].name
        if configuration == self.space.bad:
            return self.last
        on = self.list_changed(configuration)
        off = [change.name for change in self.changes if change.name not in on]
        if len(on) <= len(off):
            return f"{self.first} + {', '.join(on)}"
        return f"{self.last} - {', '.join(off)}"

    def explain(self, suspect: Suspect, posterior: float) -> BisectionSuspect:
        """Return a hypothesis in words."""
        offset = 1 if self.space.ordered else 0
        names = tuple(self.changes[i - offset].name for i in suspect.members)
        return BisectionSuspect(
            kind=suspect.kind, members=names, posterior=posterior, text=self._say(suspect, names)
        )

    def _say(self, suspect: Suspect, names: Sequence[str]) -> str:
        if suspect.kind == "none":
            return "no step" if self.space.ordered else "no option"
        if suspect.kind == "from":
            return f"from {names[0]} on"
        if suspect.kind == "either":
            return f"{names[0]} or {names[1]} alone"
        if suspect.kind == "together":
            return names[0] if len(names) == 1 else f"{' and '.join(names)} together"
        if suspect.kind == "outside":
            return f"{self.first} fails too"
        return "no rule"


def between_plans(good: Plan, changes: Sequence[Change]) -> Configurations:
    """Return the configurations between two plans that differ in these changes."""

    def make(configuration: int) -> Plan:
        return mix(good, [one for i, one in enumerate(changes) if configuration >> i & 1])

    shown = tuple(change.shown for change in changes)
    return Configurations(space_of_options(len(changes), seed=good.seed), shown, make)


def along_steps(plans: Sequence[Plan], steps: Sequence[str]) -> Configurations:
    """Return the configurations of one plan at each step, the good one first.

    Raises PlanError for fewer than two steps, or a step that is named twice.
    """
    if len(steps) < 2:
        raise PlanError("--steps: name two steps or more, the good one first")
    if twice := [step for step in dict.fromkeys(steps) if steps.count(step) > 1]:
        raise PlanError(f"--steps: {', '.join(twice)} is named twice")
    shown = tuple(
        BisectionChange(name=step, options=(), good=steps[i], bad=step)
        for i, step in enumerate(steps[1:])
    )
    space = space_of_steps(len(steps) - 1)
    return Configurations(space, shown, lambda i: plans[i], first=steps[0], last=steps[-1])


def fill_in(content: Any, step: str) -> Any:
    """Return a plan file's content with the step in place of {step} in every text."""
    if isinstance(content, str):
        return content.replace(PLACEHOLDER, step)
    if isinstance(content, dict):
        return {fill_in(key, step): fill_in(value, step) for key, value in content.items()}
    if isinstance(content, list):
        return [fill_in(value, step) for value in content]
    return content


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
