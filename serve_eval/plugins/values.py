"""Launchers and verdict rules as values: the one place that reads the attributes of their files.

A file offers a function (`launch`, `judge`) and may say more at its top level, in the forms of
docs/extending.md. What it says is read and checked here. Everything else takes a Launcher or a
VerdictRule and knows no modules.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from serve_eval.errors import PlanError
from serve_eval.plugins import nested_options, registry
from serve_eval.plugins.declarations import Option, find_structure

if TYPE_CHECKING:
    from serve_eval.schema import Endpoint, LaunchContext, Verdict

LAUNCHERS = "launchers"
VERDICTS = "serve_eval.verdicts.rules"
EarlyStopBy = Literal["mean", "pairs"]
"""The bets that an early stop of a rule takes: on the mean of the scores, or on pairs of scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One way of getting an endpoint.

    `launch(context, **options)` yields the endpoint. `commands(context, **options)` returns the
    command lines that it would start, and `files` the text of the files that these need, by path.
    `beginning(**options)` tells the token before a text of a server that does not run yet. All four
    take options that were checked, whether the launcher's file takes them as one structure or one
    by one. `meanings` explain options in a line each, by dotted path or name.
    """

    name: str
    launch: Callable[..., AbstractAsyncContextManager[Endpoint]]
    commands: Callable[..., list[list[str]]]
    files: Callable[..., Mapping[Path, str]] | None = None
    beginning: Callable[..., str | bool | None] | None = None
    meanings: Mapping[str, str]

    @property
    def options(self) -> Mapping[str, Option]:
        """Its options, by name."""
        return registry.options_of(self.launch)

    def check_options(self, options: Mapping[str, object], where: str = "") -> dict[str, object]:
        """Convert options to their types. Raises PlanError with each problem behind `where`, else
        behind its name.
        """
        return registry.check_options(self.launch, options, where or f"launcher.{self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRule:
    """One way of judging a task.

    `judge(result, reference, hypothesis, pairs, **options)` returns the verdict. `check(**options)`
    raises PlanError for options that cannot be meant. `needs_pairs`: the rule compares sample by
    sample, with `min_reference_runs` runs of the reference at least. `early_stop`: the bets by
    which the rule may be decided early (None: it may not be).
    """

    name: str
    judge: Callable[..., Verdict]
    check: Callable[..., None] | None = None
    needs_pairs: bool = False
    min_reference_runs: int = 1
    early_stop: EarlyStopBy | None = None

    def check_options(
        self, options: Mapping[str, object], where: str | None = None
    ) -> dict[str, object]:
        """Convert options to their types. Raises PlanError with each problem behind `where`, else
        behind its name.
        """
        return registry.check_options(
            self.judge, options, f"verdict.{self.name}" if where is None else where
        )

    def default(self, option: str) -> Any:
        """Return the default of an option."""
        return registry.options_of(self.judge)[option].default


def load_launcher(name: str) -> Launcher:
    """Find a launcher. Raises PlanError for an unknown name, and for a file of others that is not
    as ours are.
    """
    launch = registry.load(LAUNCHERS, name)
    module = _module_of(launch)
    meanings = getattr(module, "MEANINGS", {})
    if not isinstance(meanings, Mapping) or not all(
        isinstance(text, str) for text in (*meanings, *meanings.values())
    ):
        raise PlanError(
            f"{_place(module)}: MEANINGS is a mapping of options to a line each, and not"
            f" {meanings!r}"
        )
    commands = _function(module, "commands")
    assert commands is not None  # the registry refuses a file without it
    files, beginning = _function(module, "files"), _function(module, "beginning")
    described = {
        option.path: option.meaning for option in nested_options.options(launch) if option.meaning
    }
    structure = find_structure(launch)
    return Launcher(
        name=name,
        launch=_take_keywords(launch, structure),
        commands=_take_keywords(commands, structure),
        files=files and _take_keywords(files, structure),
        beginning=beginning and _take_keywords(beginning, structure),
        meanings={**meanings, **described},
    )


def load_verdict_rule(name: str) -> VerdictRule:
    """Find a verdict rule. Raises PlanError for an unknown name, and for a file of others that is
    not as ours are.
    """
    judge = registry.load(VERDICTS, name)
    module = _module_of(judge)
    needs_pairs, runs = (
        getattr(module, "NEEDS_PAIRS", False),
        getattr(module, "NEEDS_REFERENCE_RUNS", 1),
    )
    if not isinstance(needs_pairs, bool):
        raise PlanError(f"{_place(module)}: NEEDS_PAIRS is True or False, and not {needs_pairs!r}")
    if not isinstance(runs, int) or runs < 1:
        raise PlanError(
            f"{_place(module)}: NEEDS_REFERENCE_RUNS is a number from 1 on, and not {runs!r}"
        )
    ours = name in registry.list_shipped(VERDICTS)
    return VerdictRule(
        name=name,
        judge=judge,
        check=_function(module, "check"),
        needs_pairs=needs_pairs,
        min_reference_runs=runs,
        early_stop=(
            getattr(module, "EARLY_STOP", None) if ours else None
        ),  # the bets are proven for rules of ours alone
    )


def rules_with_early_stop() -> list[str]:
    """Return the names of the rules that may be decided early."""
    return [
        name
        for name in registry.list_shipped(VERDICTS)
        if load_verdict_rule(name).early_stop is not None
    ]


def _take_keywords(function: Callable[..., Any], structure: type | None) -> Callable[..., Any]:
    """Return a function of a launcher in the form that takes its options by keyword."""
    if structure is None:
        return function

    @functools.wraps(function)  # whoever asks for its options finds the structure
    def call(*context: LaunchContext, **options: object) -> Any:
        return function(*context, structure(**options))

    return call


def _function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is not None and not callable(found):
        raise PlanError(f"{_place(module)}: {name} is a function, and not {found!r}")
    return found


def _module_of(function: Callable[..., Any]) -> ModuleType:
    return sys.modules[function.__module__]


def _place(module: ModuleType) -> str:
    return module.__file__ or module.__name__
