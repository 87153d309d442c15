"""Offer the workflows as Python functions.

Import them from `serve_eval`; docs/extending.md has examples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from serve_eval.checks.run import choose_checks
from serve_eval.evaluation.evaluate import evaluate as run_plan
from serve_eval.evaluation.trust import to_read
from serve_eval.plan.resolve import resolve_address
from serve_eval.report.run.document import TellingReport
from serve_eval.schema import Comparison, Event, Plan, Progress, Report, Spec, Verification
from serve_eval.workflows.compare.compare import SELF, SHOW_FLIPS, CompareRules, CompareSide
from serve_eval.workflows.compare.compare import compare as compare_sides
from serve_eval.workflows.compare.document import TellingComparison
from serve_eval.workflows.compare.sides import check_two_servers
from serve_eval.workflows.events import evaluate_with_events
from serve_eval.workflows.smoke import Smoke, check_required, smoke_endpoint
from serve_eval.workflows.verify.servers import PROBES, NamedPlan, VerifyRules
from serve_eval.workflows.verify.verify import verify as verify_servers


async def evaluate(
    plan: Plan,
    folder: str | Path,
    *,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    notify: Callable[[str], None] = lambda line: None,
    strict: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> Report:
    """Run a plan in a run folder, or resume the run there, and return the report.

    The folder holds the same report as report.json. Keys are read from the variables of `environ`
    that `plan.connection` names. `on_event` receives everything that happens, the results of the
    tasks too; `progress` and `notify` receive parts of it. With `strict`, an undecided run fails.
    Raises ServeEvalError for anything that stops the run; finished answers stay in the folder. The
    text of the report, `str()`, is one line: the worst task with its figures, and the folder.
    """
    run = run_plan if on_event is None else partial(evaluate_with_events, on_event=on_event)
    report = await run(
        plan, Path(folder), environ=environ, progress=progress, notify=notify, strict=strict
    )
    return TellingReport.of(report, Path(folder))


async def compare(
    a: Plan | str | Path,
    b: Plan | str | Path,
    folder: str | Path,
    *,
    rule: Spec | None = None,
    ask_twice: int = SELF,
    show_flips: int = SHOW_FLIPS,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    notify: Callable[[str], None] = lambda line: None,
    strict: bool = False,
) -> Comparison:
    """Ask two endpoints the same prompts at the same time, and judge B with A as the reference.

    A side is a plan, or the folder of a finished run, which is not asked again. `rule` defaults to
    `paired`. `ask_twice` prompts per task are asked twice on both sides, to measure how much an
    endpoint differs from itself. Raises NotComparableError if the sides do not ask the same
    prompts, PlanError if they are one server, and ServeEvalError for anything that stops a run. The
    text of the result, `str()`, is the line of its verdict, as `serve-eval compare --notify-text`
    writes it without a cause.
    """
    sides = _side(a), _side(b)
    rules = CompareRules(rule=rule or Spec(name="paired"), again=ask_twice)
    check_two_servers(*sides, rules)
    comparison = await compare_sides(
        *sides,
        rules,
        Path(folder),
        show_flips=show_flips,
        strict=strict,
        progress=progress,
        environ=environ,
        notify=notify,
    )
    return TellingComparison.of(comparison)


async def smoke(
    endpoint: str,
    *,
    model: str | None = None,
    level: Literal["quick", "full"] = "quick",
    require: Sequence[str] = (),
    timeout_s: float = 60.0,
    environ: Mapping[str, str] = os.environ,
) -> Smoke:
    """Check how an endpoint handles each kind of request, without a data set.

    `endpoint` is an address as the command line takes it, such as `localhost:8000`. For the checks
    in `require`, UNSUPPORTED counts as FAIL. Raises PlanError for an address or a check that does
    not exist.
    """
    settings = {"base_url": endpoint} | ({} if model is None else {"model": model})
    checks = choose_checks(level)
    return await smoke_endpoint(
        resolve_address(settings, environ),
        checks,
        needed=check_required(require, checks),
        timeout_s=timeout_s,
        environ=environ,
    )


async def verify(
    good: Plan | str,
    server: Plan | str,
    folder: str | Path,
    *,
    floor: float,
    model: str | None = None,
    probes: int = PROBES,
    seed: int = 0,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = lambda line: None,
) -> Verification:
    """Find out whether a server still serves the model that a good one serves.

    A server is an address as the command line takes it, or a plan, which may launch it. Each is
    asked for two tokens after at most `probes` texts that break off. `floor` is the largest
    distance of healthy numerics in nats (docs/verify.md says how to measure it). The folder keeps
    the logs of launched servers. Raises NotComparableError if the good server lists no
    log-probabilities, and ServeEvalError for anything that stops the command.
    """
    sides = [
        NamedPlan(name=name, plan=_build_plan(given, model, environ))
        for name, given in (
            (_name_side(good, "good"), good),
            (_name_side(server, "server"), server),
        )
    ]
    rules = VerifyRules(probes=probes, floor=floor, seed=seed)
    found, _ = await verify_servers(
        sides[0], sides[1:], (), rules, Path(folder), environ=environ, notify=notify
    )
    return found


def _name_side(given: Plan | str, otherwise: str) -> str:
    return given if isinstance(given, str) else otherwise


def _build_plan(given: Plan | str, model: str | None, environ: Mapping[str, str]) -> Plan:
    """Return the plan that reaches a server; without tasks, word problems give the texts."""
    if isinstance(given, str):
        settings = {"base_url": given} | ({} if model is None else {"model": model})
        given = resolve_address(settings, environ)
    tasks = given.tasks or (Spec(name="word_problems"),)
    return replace(given, tasks=tasks, no_reference=True, references_dir=None)


def _side(given: Plan | str | Path) -> CompareSide:
    """Return one side of a comparison: a plan to run, or a finished run."""
    if isinstance(given, Plan):
        return CompareSide(plan=given)
    return CompareSide(plan=to_read(Path(given), (), writes=False), folder=Path(given))
