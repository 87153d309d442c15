"""Run a smoke test against a server of the tests, in this process and over real sockets."""

import asyncio
from functools import partial

from serve_eval.checks.row import curl
from serve_eval.checks.session import CheckSession
from serve_eval.client.connection import connect, openai_client
from serve_eval.plan.resolve import resolve_address
from serve_eval.schema import Connection, Endpoint
from serve_eval.workflows import smoke
from tests.scripted_server import serve

FIRST = ("reachable", "models", "chat", "completions")
"""Checks that others depend on."""


async def smoke_at(
    url,
    *,
    only=None,
    level="full",
    model=None,
    needed=(),
    timeout_s=20.0,
    passkey_tokens=None,
    context_tokens=None,
    environ=None,
    local=None,
    items=False,
):
    """Smoke-test the endpoint at `url`; `only` runs these checks and those that they depend on."""
    environ = environ or {}
    plan = resolve_address({"base_url": url}, environ)
    base_url = str(plan.launcher.options["base_url"])
    checks = smoke.choose_checks(
        level,
        passkey_tokens=passkey_tokens,
        context_tokens=context_tokens,
        local=local,
        items=items,
    )
    if only is not None:
        wanted = {*FIRST, *only}
        checks = [check for check in checks if check.name in wanted]
    async with connect(plan, Endpoint(base_url=base_url), environ) as client:
        package = partial(openai_client, plan, environ=environ, timeout_s=timeout_s)
        session = CheckSession(
            client,
            model=model,
            openai=package,
            timeout_s=timeout_s,
            context_tokens=context_tokens,
            settle_s=0.0,
        )
        sent_again = partial(curl, connection=Connection(), variables=environ)
        return await smoke.smoke(session, checks, needed=needed, curl=sent_again)


def smoke_of(server, path="/v1", **more):
    """Smoke-test a server at this path."""

    async def main():
        async with serve(server) as url:
            return await smoke_at(url.removesuffix("/v1") + path, **more)

    return asyncio.run(main())


def by_name(done):
    return {row.name: row for row in done.rows}
