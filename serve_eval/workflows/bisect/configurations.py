"""The configurations of a search: mixtures of two plans, or one plan at steps in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.evaluation.shared_server import server_key
from serve_eval.schema import BisectionChange, BisectionSuspect, Plan
from serve_eval.stats.suspects import SearchSpace, Suspect, space_of_options, space_of_steps
from serve_eval.workflows.bisect.changes import Change, mix

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
