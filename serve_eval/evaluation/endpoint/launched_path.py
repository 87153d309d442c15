"""Ask the launcher of a plan which path it promises, and which options of its servers disagree."""

from __future__ import annotations

from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.plugins.values import Launcher, load_launcher
from serve_eval.schema import Endpoint, LaunchContext, PathClaim, Plan


def describe(plan: Plan, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with what its launcher promises and warns of."""
    told = {"expects": list_promised(plan), "disagreements": list_disagreements(plan)}
    return endpoint.with_info(**{name: found for name, found in told.items() if found})


def list_promised(plan: Plan) -> tuple[str, ...]:
    """Return the names of the claims that the launcher makes. Raise PlanError for unknown ones."""
    launcher = load_launcher(plan.launcher.name)
    if launcher.expects is None:
        return ()
    names = tuple(launcher.expects(_context(plan), **_options(launcher, plan)))
    for name in names:
        if name not in set(PathClaim):
            raise PlanError(
                f"launcher {plan.launcher.name}: expects() returned {name!r}",
                hint=f"Known: {', '.join(PathClaim)}.",
            )
    return names


def list_disagreements(plan: Plan) -> tuple[str, ...]:
    """Return the launcher's warnings about options of servers that work together."""
    launcher = load_launcher(plan.launcher.name)
    if launcher.lint is None:
        return ()
    return tuple(launcher.lint(_context(plan), **_options(launcher, plan)))


def _options(launcher: Launcher, plan: Plan) -> dict[str, object]:
    return launcher.check_options(plan.launcher.options)


def _context(plan: Plan) -> LaunchContext:
    return LaunchContext(model=plan.model, log_dir=Path(), patience_s=plan.limits.sample_timeout_s)
