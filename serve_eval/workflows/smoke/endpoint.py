"""Run a smoke test of an endpoint that a plan names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from serve_eval.checks.check import Check
from serve_eval.checks.curl import curl
from serve_eval.checks.row import CheckRow
from serve_eval.checks.session import CheckSession
from serve_eval.client.connection import connect, openai_client
from serve_eval.schema import Endpoint, Plan
from serve_eval.workflows.smoke.known import KnownFailures
from serve_eval.workflows.smoke.smoke import Smoke, smoke


async def smoke_endpoint(
    plan: Plan,
    checks: Sequence[Check],
    *,
    needed: Collection[str] = (),
    timeout_s: float = 60.0,
    context_tokens: int | None = None,
    environ: Mapping[str, str] = os.environ,
    known: KnownFailures | None = None,
    notify: Callable[[CheckRow], None] = lambda row: None,
) -> Smoke:
    """Run the checks against the endpoint of a plan whose launcher is `external`.

    UNSUPPORTED counts as FAIL for the checks in `needed`. A request may take `timeout_s` seconds.
    What fails as `known` says is KNOWN. `notify` receives each row immediately. Raises PlanError
    for an invalid connection.
    """
    base_url = str(plan.launcher.options["base_url"])
    limits = replace(plan.limits, connect_timeout_s=min(plan.limits.connect_timeout_s, timeout_s))
    plan = replace(plan, limits=limits)
    filled = {name for name, value in environ.items() if value.strip()}
    async with connect(plan, Endpoint(base_url=base_url, model=plan.model), environ) as client:
        package = partial(openai_client, plan, environ=environ, timeout_s=timeout_s)
        session = CheckSession(
            client,
            model=plan.model,
            openai=package,
            timeout_s=timeout_s,
            context_tokens=context_tokens,
        )
        line = partial(curl, connection=plan.connection, variables=filled)
        return await smoke(session, checks, needed=needed, curl=line, known=known, notify=notify)
