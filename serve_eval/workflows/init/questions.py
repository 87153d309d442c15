"""Ask an endpoint what a starter plan has to know: server, models, context, kinds of requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities import features
from serve_eval.evaluation.capabilities.features import prompt_logprobs
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.schema import Ability, Endpoint, Failure, Need, Plan

TIMEOUT_S = 60.0
"""Longest wait for one answer: a starter plan is written without an endpoint that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFacts:
    """Hold the answers of an endpoint about itself, and its abilities.

    `problem` says why nothing is known ("": something is). `abilities` are in the order of asking.
    """

    models: tuple[str, ...] = ()
    server: str | None = None
    version: str | None = None
    context_tokens: int | None = None
    abilities: tuple[Ability, ...] = field(default_factory=tuple)
    problem: str = ""

    def can(self, need: Need) -> bool | None:
        """Return whether the endpoint can do something; None if that is not known."""
        return next((one.works for one in self.abilities if one.need == need), None)


async def ask_facts(plan: Plan, environ: Mapping[str, str] = os.environ) -> EndpointFacts:
    """Return what the endpoint of a plan tells about itself, with a few short requests.

    An endpoint that does not answer is a problem in the result, not an error. Raises PlanError for
    an invalid connection.
    """
    limits = replace(plan.limits, connect_timeout_s=5.0, sample_timeout_s=TIMEOUT_S)
    limits = replace(limits, outage_timeout_s=0.0, stall_timeout_s=TIMEOUT_S, max_attempts=1)
    plan = replace(plan, limits=limits)
    base_url = str(plan.launcher.options["base_url"])
    try:
        async with connect(plan, Endpoint(base_url=base_url, model=plan.model), environ) as client:
            listed = await client.models()
            models = () if isinstance(listed, Failure) else tuple(listed)
            if isinstance(listed, Failure) and listed.status is None:
                return EndpointFacts(problem=listed.message)
        model = plan.model or next(iter(models), None)
        async with connect(plan, Endpoint(base_url=base_url, model=model), environ) as client:
            return await _ask(client, models, model)
    except EndpointError as error:
        return EndpointFacts(problem=str(error))


async def _ask(client: Client, models: tuple[str, ...], model: str | None) -> EndpointFacts:
    told = await client.describe()
    abilities = [await _try_kind(client, chat=chat) for chat in (True, False)]
    chat, completions = (one.works for one in abilities)
    if completions:
        abilities.append((await prompt_logprobs(client))[0])
    if chat:
        abilities += [await features.tools(client), await features.images(client)]
    server, version = told.get("server"), told.get("version")
    return EndpointFacts(
        models=models,
        server=server if isinstance(server, str) else None,
        version=version if isinstance(version, str) else None,
        context_tokens=await client.context_tokens(),
        abilities=tuple(abilities),
        problem="" if chat or completions else abilities[1].seen or "no kind of request works",
    )


async def _try_kind(client: Client, *, chat: bool) -> Ability:
    """Return whether chat requests, or requests with plain text, are answered."""
    result = await send_probe(client, ping(chat))
    failed = isinstance(result, Failure)
    return Ability(
        need=Need.CHAT if chat else Need.COMPLETIONS,
        works=not failed,
        seen=result.message if isinstance(result, Failure) else "answers",
    )
