"""Provide launchers and verdict rules as values; only this module reads their files.

A file offers a function (`launch`, `judge`) and may define more at its top level, as
docs/extending.md describes. This module reads and checks it. All other code uses Launcher and
VerdictRule objects and knows no modules.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins import declarations, registry
from serve_eval.plugins._wanted import LAUNCHER_FUNCTIONS, NOTHING
from serve_eval.plugins.declarations import Option, find_structure
from serve_eval.plugins.returned import check_function

if TYPE_CHECKING:
    from serve_eval.schema import Endpoint, JobSize, LaunchContext, Prompt, Verdict

LAUNCHERS = "serve_eval.launchers"
VERDICTS = "serve_eval.verdicts.rules"
OF_EVERY_RULE: Mapping[str, Any] = {
    "repaired": Literal["bound", "trust"],
    "max_repaired": float | None,
}
"""The options that every verdict rule has, with their types: those of schema.RepairedPolicy."""
EarlyStopBy = Literal["mean", "pairs"]
"""The test with which a rule may stop early: on the mean of the scores, or on pairs of scores."""


@freeze
class Launcher:
    """One way of providing an endpoint.

    `launch(context, **options)` yields the endpoint. `commands(context, **options)` returns the
    command lines that it would start, and `files` the text of their files by path.
    `beginning(**options)` returns the token before a text on a server that does not run yet.
    `count_tokens(prompt, **options)` returns the number of tokens of a prompt on such a server, or
    None. `job_size(context, **options)` returns the size of a batch job that runs the servers.
    `expects(context, **options)` returns the parts of the path that the servers promise, by the
    names of PathClaim, and `lint(context, **options)` warnings about options of servers that work
    together. All eight take checked options by keyword, even if the launcher's file takes them as
    one structure.
    `meanings` holds a line for each option, by dotted path or name.
    """

    name: str
    launch: Callable[..., AbstractAsyncContextManager[Endpoint]]
    commands: Callable[..., list[list[str]]]
    files: Callable[..., Mapping[Path, str]] | None = None
    beginning: Callable[..., str | bool | None] | None = None
    count_tokens: Callable[..., int | None] | None = None
    job_size: Callable[..., JobSize] | None = None
    expects: Callable[..., Sequence[str]] | None = None
    lint: Callable[..., Sequence[str]] | None = None
    meanings: Mapping[str, str]

    @property
    def options(self) -> Mapping[str, Option]:
        """The options, by name."""
        return registry.options_of(self.launch)

    def check_options(self, options: Mapping[str, object], where: str = "") -> dict[str, object]:
        """Return options converted to their types.

        Raises PlanError with all problems, each starting with `where`, which defaults to the name.
        """
        return registry.check_options(self.launch, options, where or f"launcher.{self.name}")


@freeze
class VerdictRule:
    """One way of judging a task.

    `judge(result, reference, hypothesis, pairs, **options)` returns the verdict. `check(**options)`
    raises PlanError for options that make no sense. With `needs_pairs`, the rule compares sample by
    sample, with at least `min_reference_runs` runs of the reference. With `needs_texts`, the pairs
    hold no scores but 1 for an answer of the reference and 1 or 0 for an equal or another one.
    `early_stop` names the test with which the rule may stop early (None: it must not).
    """

    name: str
    judge: Callable[..., Verdict]
    check: Callable[..., None] | None = None
    needs_pairs: bool = False
    needs_texts: bool = False
    min_reference_runs: int = 1
    early_stop: EarlyStopBy | None = None

    def check_options(
        self, options: Mapping[str, object], where: str | None = None
    ) -> dict[str, object]:
        """Return the rule's own options, converted to their types.

        Raises PlanError with all problems, each starting with `where`, which defaults to the name.
        OF_EVERY_RULE are checked too, and left out.
        """
        place = f"verdict.{self.name}" if where is None else where
        checked = registry.check_options(self.judge, options, place, also=OF_EVERY_RULE)
        return {name: value for name, value in checked.items() if name not in OF_EVERY_RULE}

    def with_options(self, options: Mapping[str, object]) -> Callable[..., Verdict]:
        """Return `judge` with these options. Raises PlanError for invalid ones."""
        own = self.check_options(options)
        return lambda *arguments, **more: self.judge(*arguments, **{**own, **more})

    def allows_missing(self, options: Mapping[str, object]) -> float | None:
        """Return the largest share of missing answers that these options allow.

        None if the rule has no such limit.
        """
        known = registry.options_of(self.judge)
        if "max_missing" not in known:
            return None
        return float(options.get("max_missing", known["max_missing"].default))  # type: ignore[arg-type]

    def default(self, option: str) -> Any:
        """Return the default of an option."""
        return registry.options_of(self.judge)[option].default


def load_launcher(name: str) -> Launcher:
    """Return a launcher. Raises PlanError for an unknown name or an invalid file."""
    launch = registry.load(LAUNCHERS, name)
    module = _module_of(launch)
    meanings = getattr(module, "MEANINGS", {})
    if not isinstance(meanings, Mapping) or not all(
        isinstance(text, str) for text in (*meanings, *meanings.values())
    ):
        raise PlanError(
            f"{_place(module)}: MEANINGS must map each option to one line, not {meanings!r}"
        )
    ours = name in registry.list_shipped(LAUNCHERS)
    found = {
        part: one if ours else check_function(one, part, check, _place(module))
        for part, check in LAUNCHER_FUNCTIONS.items()
        if (one := _function(module, part)) is not None
    }
    described = {
        option.path: option.meaning for option in declarations.options(launch) if option.meaning
    }
    structure = find_structure(launch)
    return Launcher(
        name=name,
        launch=_take_keywords(launch, structure),
        meanings={**meanings, **described},
        **{part: _take_keywords(one, structure) for part, one in found.items()},
    )


def load_verdict_rule(name: str) -> VerdictRule:
    """Return a verdict rule. Raises PlanError for an unknown name or an invalid file."""
    judge = registry.load(VERDICTS, name)
    module = _module_of(judge)
    needs_pairs, runs = (
        getattr(module, "NEEDS_PAIRS", False),
        getattr(module, "NEEDS_REFERENCE_RUNS", 1),
    )
    if not isinstance(needs_pairs, bool):
        raise PlanError(f"{_place(module)}: NEEDS_PAIRS must be True or False, not {needs_pairs!r}")
    if not isinstance(runs, int) or runs < 1:
        raise PlanError(f"{_place(module)}: NEEDS_REFERENCE_RUNS must be 1 or more, not {runs!r}")
    ours = name in registry.list_shipped(VERDICTS)
    check = _function(module, "check")
    if check is not None and not ours:
        check = check_function(check, "check", NOTHING, _place(module))
    return VerdictRule(
        name=name,
        judge=judge,
        check=check,
        needs_pairs=needs_pairs,
        needs_texts=getattr(module, "NEEDS_TEXTS", False) if ours else False,
        min_reference_runs=runs,
        early_stop=(
            getattr(module, "EARLY_STOP", None) if ours else None
        ),  # early stops are proven for our rules only
    )


def list_rules() -> list[str]:
    """Return the names of the rules that ship, without reading their files."""
    return list(registry.list_shipped(VERDICTS))


def rules_with_pairs() -> list[str]:
    """Return the names of the rules that compare sample by sample."""
    return [name for name in registry.list_shipped(VERDICTS) if load_verdict_rule(name).needs_pairs]


def rules_with_early_stop() -> list[str]:
    """Return the names of the rules that may stop early."""
    return [
        name
        for name in registry.list_shipped(VERDICTS)
        if load_verdict_rule(name).early_stop is not None
    ]


def _take_keywords(function: Callable[..., Any], structure: type | None) -> Callable[..., Any]:
    """Return a launcher's function in the form that takes options by keyword."""
    if structure is None:
        return function

    @functools.wraps(function)  # so that find_structure works on it too
    def call(*context: LaunchContext | Prompt, **options: object) -> Any:
        return function(*context, structure(**options))

    return call


def _function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is not None and not callable(found):
        raise PlanError(f"{_place(module)}: {name} must be a function, not {found!r}")
    return found


def _module_of(function: Callable[..., Any]) -> ModuleType:
    return sys.modules[function.__module__]


def _place(module: ModuleType) -> str:
    return module.__file__ or module.__name__
