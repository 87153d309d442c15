"""Settle what a plan leaves to its endpoint, before anything is prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation import first_token
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Plan, Task


async def settle(
    plan: Plan,
    out_dir: Path,
    environ: Mapping[str, str],
    notify: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Return the plan with the tokens that begin its texts and the lengths of its prompts.

    A resumed run keeps those of its folder. `notify` receives a line before a wait. Raises
    EndpointError if an endpoint that is asked does not answer, and PlanError for a plan that cannot
    be fitted to it.
    """
    plan = await first_token.settle_prefixes(plan, out_dir, environ)
    if not (unfitted := _find_unfitted(plan)):
        return plan
    from serve_eval.evaluation.prompt_lengths import fit_lengths  # few tasks need it

    return await fit_lengths(plan, unfitted, out_dir, environ, notify)


def _find_unfitted(plan: Plan) -> dict[str, Task]:
    """Return the tasks to fit. Skips tasks with problems, which `prepare` reports."""
    found = {}
    for spec in plan.tasks:
        try:
            task = build_task(spec)
        except ServeEvalError:
            continue
        if task.fit is not None:
            found[spec.name] = task
    return found
