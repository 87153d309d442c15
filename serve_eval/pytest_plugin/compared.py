"""Build the sides of a comparison that a test asks for, and describe how it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.frozen import freeze
from serve_eval.pytest_plugin.asked import Options, TaskOption, merge_levels, read_base
from serve_eval.pytest_plugin.results import (
    EvaluatedTest,
    conclude,
    draw,
    find_leads_in,
    list_properties,
    shorten_path,
    speak_in_verdict,
)

if TYPE_CHECKING:
    from serve_eval.schema import Comparison, Plan
    from serve_eval.workflows.compare.compare import CompareRules, CompareSide

    SideOption = str | Path | Mapping[str, Any] | Plan
_ENDPOINT = ("launcher", "base_url")
_OF_SERVERS = (*_ENDPOINT, "launcher_options", "model_path")
_OF_VERDICTS = (
    "verdict",
    "early_stop",
    "accept_identical",
    "no_reference",
    "allow_missing_reference",
)
"""Keys about a verdict against a reference: a comparison has a rule of its own."""
_ONE_SIDED = ("OPENAI_BASE_URL", "INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
"""Variables that name one endpoint, or ask for less."""


@freeze
class ComparedSides:
    """Hold the two sides that a test compares, and the rules that judge them."""

    a: CompareSide
    b: CompareSide
    rules: CompareRules


@freeze
class _Given:
    """A side as a test gives it: options, a plan in the form of a file, or a finished run."""

    options: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    run: Path | None = None


def build_sides(
    given: Sequence[Any],
    tasks: Sequence[TaskOption],
    levels: Sequence[Options],
    build: Callable[..., Plan],
    *,
    base: Options,
    ask_twice: int | None,
) -> ComparedSides:
    """Return both sides and the rules. Raises PlanError.

    `levels` are the options of class, marker and call, above the keys of `base`. A side that is a
    plan or a run gives the prompts of the other, as far as the test names none. `build` makes a
    plan of what is asked, of keys below that, and of variables.
    """
    from serve_eval.workflows.compare.compare import SELF, CompareRules, CompareSide
    from serve_eval.workflows.compare.sides import check_two_servers

    environ = {name: value for name, value in os.environ.items() if name not in _ONE_SIDED}
    found = [_read_side(one) for one in given]
    _check_trust([one.run for one in found])
    shared = next((one.document for one in found if one.document), {})
    asked = [_leave_out(level, _OF_VERDICTS[1:]) for level in levels]
    rule, sides = None, []
    for one in found:
        below = {**base, **(one.document or _leave_out(shared, _ENDPOINT))}
        below = _leave_out(below, (*_OF_VERDICTS, *(_ENDPOINT if one.document else ())))
        named = (*_ENDPOINT, "model")
        own = {
            **one.options,
            **{name: value for name, value in one.document.items() if name in named},
        }
        above = [_leave_out(level, _OF_SERVERS) if one.document else level for level in asked]
        if one.run is not None:
            sides.append(CompareSide(_read_plan(one.run), folder=one.run))
            continue
        merged = merge_levels(tasks, {"verdict": "paired"}, *above, own)
        plan = build(merged, below, environ)
        rule = rule or plan.verdict
        sides.append(CompareSide(plan))
    allowed = merge_levels((), *asked).options.get("allow_mismatch", ())
    rules = CompareRules(
        rule or _build_rule(asked),
        again=SELF if ask_twice is None else ask_twice,
        allow_mismatch=(allowed,) if isinstance(allowed, str) else tuple(allowed),
    )
    check_two_servers(sides[0], sides[1], rules)
    return ComparedSides(a=sides[0], b=sides[1], rules=rules)


def _read_side(given: Any) -> _Given:
    """Return a side as it is given. Raises PlanError for what is no side."""
    from serve_eval.errors import PlanError
    from serve_eval.plan.plan_file import to_file
    from serve_eval.schema import Plan

    if isinstance(given, Mapping):
        return _Given(options=given)
    if isinstance(given, Plan):
        return _Given(document=to_file(given))
    if isinstance(given, str | Path):
        path = Path(given)
        if path.is_dir():
            return _Given(document=to_file(_read_plan(path)), run=path)
        if path.exists() or path.suffix in (".yaml", ".yml"):
            return _Given(document=read_base(path))
        if isinstance(given, str):
            return _Given(options={"base_url": given})
    raise PlanError(
        f"{given}: neither an endpoint, a plan nor a run",
        hint="Give an address, options such as launcher=, a plan or its file, or a run folder.",
    )


def _check_trust(runs: Sequence[Path | None]) -> None:
    """Raise PlanError if an endpoint would be asked by the plan of another user's run."""
    from serve_eval.evaluation.trust import to_follow

    if None in runs:
        for run in filter(None, runs):
            to_follow(run, {"base_url": ""}, trust_plan=False)


def _read_plan(run: Path) -> Plan:
    """Return the plan of a finished run, which is not asked."""
    from serve_eval.evaluation.trust import to_read

    return to_read(run, (), writes=False)


def _build_rule(levels: Sequence[Options]) -> Any:
    """Return the rule of two finished runs, which need no plan."""
    from serve_eval.schema import Spec

    named = merge_levels((), {"verdict": "paired"}, *levels).options["verdict"]
    if isinstance(named, str):
        return Spec(name=named)
    options = dict(named)
    return Spec(name=str(options.pop("name")), options=options)


def _leave_out(keys: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name not in names}


def describe_compared(
    comparison: Comparison,
    folder: Path,
    *,
    kept: bool,
    include_path: Sequence[str],
    max_detects: float | None,
) -> EvaluatedTest:
    """Return the result of a comparison, with the states and properties of junit.xml."""
    from serve_eval.report.ci_result import CiState
    from serve_eval.report.document import print_document
    from serve_eval.report.task_line import describe_undecided
    from serve_eval.workflows.compare.document import make_document

    comparison = _speak_to_tests(comparison)
    leads = find_leads_in(folder, comparison.exit_code, include_path)
    here = shorten_path(folder)
    document = make_document(comparison, here, leads.causes, leads.places)
    cases = document.cases
    passed = all(case.state is CiState.PASSED for case in cases)
    if passed:
        document = make_document(_drop_warnings(comparison), here)
    return conclude(
        cases,
        draw(lambda console: print_document(document, console)),
        kept=kept,
        properties=dict(list_properties(cases, folder, document.commands)),
        warnings=list(_list_warnings(comparison)),
        undecided=describe_undecided(comparison, max_detects) if passed else "",
        rehearsal=comparison.rehearsal,
    )


def _list_warnings(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader should know although B passed."""
    from serve_eval.report.run.conclusions import remark_on_losses
    from serve_eval.workflows.compare.rows import list_warnings

    for task in comparison.tasks:
        losses = [f"{n}: {one}" for n in "ab" for one in remark_on_losses(getattr(task, n))]
        warnings = (*task.verdict.warnings, *task.warnings, *losses)
        yield from (f"{task.task}: {line}" for line in warnings)
    yield from list_warnings(comparison)


def _speak_to_tests(comparison: Comparison) -> Comparison:
    """Return a comparison whose warnings and reasons name keywords instead of flags."""
    from serve_eval.pytest_plugin.endings import say_for_tests

    tasks = [
        replace(
            task,
            verdict=speak_in_verdict(task.verdict),
            warnings=tuple(map(say_for_tests, task.warnings)),
        )
        for task in comparison.tasks
    ]
    warnings = tuple(map(say_for_tests, comparison.warnings))
    return replace(comparison, tasks=tuple(tasks), warnings=warnings)


def _drop_warnings(comparison: Comparison) -> Comparison:
    """Return a comparison without its warnings, which pytest shows in its own summary."""
    tasks = [
        replace(task, verdict=replace(task.verdict, warnings=()), warnings=())
        for task in comparison.tasks
    ]
    a, b = (replace(side, warnings=()) for side in (comparison.a, comparison.b))
    return replace(comparison, tasks=tuple(tasks), a=a, b=b, warnings=())
