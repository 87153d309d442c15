"""Settle what a plan leaves to its endpoint, before anything is prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from serve_eval.evaluation import first_token
from serve_eval.evaluation.prompt_lengths import fit_lengths
from serve_eval.schema import Plan


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
    return await fit_lengths(plan, out_dir, environ, notify)
