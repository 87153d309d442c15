"""Run a smoke test against a server of the tests, in this process and over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from aiohttp import web

from serve_eval.checks.row import CheckRow, curl
from serve_eval.checks.session import CheckSession
from serve_eval.client.connection import connect, openai_client
from serve_eval.evidence.prompt_tokens import LocalTokenizer
from serve_eval.plan.resolve import resolve_address
from serve_eval.schema import Connection, Endpoint
from serve_eval.workflows.smoke import smoke
from serve_eval.workflows.smoke.smoke import Smoke
from tests.scripted_server import ScriptedServer, serve

FIRST = ("reachable", "models", "chat", "completions")
"""Checks that others depend on."""


async def smoke_at(
    url: str,
    *,
    only: Iterable[str] | None = None,
    level: smoke.Level = "full",
    model: str | None = None,
    needed: Sequence[str] = (),
    timeout_s: float = 20.0,
    passkey_tokens: int | None = None,
    context_tokens: int | None = None,
    environ: Mapping[str, str] | None = None,
    local: LocalTokenizer | None = None,
) -> Smoke:
    """Smoke-test the endpoint at `url`; `only` runs these checks and those that they depend on."""
    environ = environ or {}
    plan = resolve_address({"base_url": url}, environ)
    base_url = str(plan.launcher.options["base_url"])
    checks = smoke.choose_checks(
        level, passkey_tokens=passkey_tokens, context_tokens=context_tokens, local=local
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


def smoke_of(server: ScriptedServer | web.Application, path: str = "/v1", **more: object) -> Smoke:
    """Smoke-test a server at this path."""

    async def main():
        async with serve(server) as url:
            return await smoke_at(url.removesuffix("/v1") + path, **more)

    return asyncio.run(main())


def by_name(done: Smoke) -> dict[str, CheckRow]:
    return {row.name: row for row in done.rows}
