"""Refuse settings under which answers mean nothing: of inherited variables or running servers.

vLLM tells its config at /server_info if VLLM_SERVER_DEV_MODE is set, and SGLang its options there
or, in older versions, at /get_server_info; trtllm-serve tells none of them. A cluster tells the
arguments of a pod's containers. A server that does not answer is not asked again: nothing is known
of it then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.questions import SGLANG, SGLANG_ROUTES
from serve_eval.errors import EndpointError, PlanError, ServeEvalError
from serve_eval.evidence.path_facts import SERVER, list_servers
from serve_eval.launchers._process import environment
from serve_eval.plan.check import HINT
from serve_eval.protocol.meaningless import (
    SWITCHES,
    MeaninglessSetting,
    find_in_description,
    judge_setting,
)
from serve_eval.schema import Endpoint, Failure, Limits, Plan
from serve_eval.schema.base_url import normalise_base_url

_NOT_INHERITED = ("external", "kubernetes", "simulated", "embedded", "container")
"""Launchers whose servers inherit none of our variables."""


def check_inherited(plan: Plan, environ: Mapping[str, str] = os.environ) -> None:
    """Raise PlanError for variables that make answers meaningless and that servers inherit."""
    if not plan.allow_meaningless and (found := list_inherited(plan, environ)):
        names = ", ".join(one.name for one in found)
        raise PlanError(
            [str(one) for one in found],
            hint=f"Servers inherit your variables: unset {names}, or allow them with"
            " --set allow_meaningless=true.",
        )


def list_inherited(plan: Plan, environ: Mapping[str, str]) -> list[MeaninglessSetting]:
    """Return the settings in variables that servers of the plan would inherit from the user.

    A variable that the plan itself sets or removes is not inherited.
    """
    if plan.launcher.name in _NOT_INHERITED:
        return []
    options = str(plan.launcher.options)
    named = {name.upper() for name in SWITCHES} & environ.keys()
    return [
        MeaninglessSetting("your environment", name, environ[name], effect)
        for name in sorted(named & environment.inherit(environ).keys())
        if (effect := judge_setting(name, environ[name])) and f"'{name}':" not in options
    ]


TIMEOUT_S = 5.0
MOST_BYTES = 4 * 1024 * 1024
ROUTES = ("/server_info",)


async def learn_settings(plan: Plan, endpoint: Endpoint, client: Client) -> Endpoint:
    """Return the endpoint with the meaningless settings that its servers tell.

    Raises EndpointError if there are any that the plan does not allow. Nothing is asked of an
    endpoint that reports no version.
    """
    found = list(_find_in_pods(endpoint))
    if endpoint.info.version is not None:
        told = [_ask(name, url, endpoint, client) for name, url, _ in list_servers(endpoint)]
        found += [one for ones in await asyncio.gather(*told) for one in ones]
    lines = tuple(dict.fromkeys(map(str, found)))
    if lines and not plan.allow_meaningless:
        raise EndpointError("\n".join(lines), hint=HINT)
    return endpoint.with_info(meaningless=lines) if lines else endpoint


async def _ask(name: str, url: str, endpoint: Endpoint, client: Client) -> list[MeaninglessSetting]:
    """Return the settings that a server tells; others than the endpoint get no key."""
    try:
        address = normalise_base_url(url)
        if address == endpoint.base_url:
            told = await _read(client, endpoint.info.server)
        else:
            at, limits = replace(endpoint, base_url=address), Limits(connect_timeout_s=TIMEOUT_S)
            async with Client(at, replace(limits, max_attempts=1)) as other:
                told = await _read(other, endpoint.info.server)
    except (ServeEvalError, OSError, ValueError):  # ValueError: an invalid address.
        return []
    return list(find_in_description(told, "the server" if name == SERVER else name))


async def _read(client: Client, server: str | None) -> object:
    """Return what a server of this kind tells at the first of its routes that it has, or None."""
    for route in SGLANG_ROUTES if server == SGLANG else ROUTES:
        if (told := await _get(client, route)) is not None:
            return told
    return None


async def _get(client: Client, route: str) -> object:
    root = urlsplit(client.endpoint.base_url).path.removesuffix("/v1")
    reply = await client.exchange("GET", root + route, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES)
    if isinstance(reply, Failure) or reply.error is not None or reply.status != 200:
        return None
    try:
        return msgspec.json.decode(reply.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _find_in_pods(endpoint: Endpoint) -> list[MeaninglessSetting]:
    return [
        one
        for pod in endpoint.info.pods or ()
        for container in pod.containers
        for one in find_in_description(
            [*(container.command or ()), *(container.args or ())], f"pod {pod.name}"
        )
    ]
