"""Find out what a deployment serves, or refuse settings under which its answers mean nothing.

The result is recorded, shown and warned about; a missing route never fails a run. Nothing is asked
of an endpoint that reports no version. Only /cluster_info is asked of an endpoint that lacks this
route and that no launcher of ours started.

vLLM tells its config at /server_info if VLLM_SERVER_DEV_MODE is set, and SGLang its options there
or, in older versions, at /get_server_info; trtllm-serve tells none of them. A cluster tells the
arguments of a pod's containers. A server that does not answer is not asked again: nothing is known
of it then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from serve_eval.client.client import Client
from serve_eval.client.questions import SGLANG, SGLANG_ROUTES
from serve_eval.errors import EndpointError, PlanError, ServeEvalError
from serve_eval.evidence.path_facts import (
    FRONT,
    ROLES,
    SERVER,
    SIZES,
    list_launched,
    list_registered,
    list_servers,
)
from serve_eval.launchers._process import environment
from serve_eval.plan.check import HINT
from serve_eval.protocol.sampling_fields import (
    SWITCHES,
    MeaninglessSetting,
    find_in_description,
    judge_setting,
)
from serve_eval.schema import (
    DeployedServer,
    DeploymentInfo,
    Endpoint,
    Failure,
    Limits,
    Plan,
    ServerInfo,
    Task,
)
from serve_eval.schema.base_url import normalise_base_url

TIMEOUT_S = 5.0
MOST_BYTES = 256 * 1024
LAUNCHERS = ("trtllm", "trtllm_disaggregated", "container", "slurm")
FEW_TOKENS = 2
"""Tokens up to which the first one decides an answer: a letter, perhaps with a space or a dot."""


async def learn_deployment(endpoint: Endpoint, client: Client) -> Endpoint:
    """Return the endpoint with what is known about its deployment at the start of a session."""
    info = endpoint.info
    if info.version is None:
        return endpoint
    cluster = await _cluster(client)
    ours = info.launcher in LAUNCHERS
    if cluster is None and not ours:
        return endpoint
    launched = await asyncio.to_thread(list_launched, info) if ours else []
    workers = [one for one in launched if one.role != FRONT] or list_registered(cluster)
    found = DeploymentInfo(
        workers=tuple(await asyncio.gather(*(_ask(one, endpoint) for one in workers)))
    )
    if cluster is not None:
        front = next(
            (one for one in launched if one.role == FRONT),
            DeployedServer(name=FRONT, url=endpoint.base_url),
        )
        front = structs.replace(front, version=info.version)
        found = structs.replace(found, front_door=front, cluster_before=cluster)
    return endpoint.with_info(deployment=_mask(found, client))


async def learn_again(endpoint: Endpoint, client: Client) -> Endpoint:
    """Return the endpoint with what is known about its deployment at the end of a session."""
    known = endpoint.info.deployment
    if known is None or not known.disaggregated or (cluster := await _cluster(client)) is None:
        return endpoint
    return endpoint.with_info(
        deployment=_mask(structs.replace(known, cluster_after=cluster), client)
    )


async def _cluster(client: Client) -> dict[str, Any] | None:
    """Return an orchestrator's report on its servers, or None if there is no orchestrator."""
    told = await _json(client, "/cluster_info")
    return told if isinstance(told, dict) and "is_ready" in told else None


async def _json(client: Client, path: str, most_bytes: int = MOST_BYTES) -> object:
    """Return the JSON of a route next to /v1, or None if there is none."""
    root = urlsplit(client.endpoint.base_url).path.removesuffix("/v1")
    reply = await client.exchange("GET", root + path, timeout_s=TIMEOUT_S, most_bytes=most_bytes)
    if isinstance(reply, Failure) or reply.error is not None or reply.status != 200:
        return None
    try:
        found: object = msgspec.json.decode(reply.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


async def _ask(worker: DeployedServer, endpoint: Endpoint) -> DeployedServer:
    """Return a server with what it reports about itself, if it can be reached from here.

    The key and the proxy are only for the endpoint itself.
    """

    try:
        at = replace(endpoint, base_url=normalise_base_url(worker.url))
        async with Client(at, Limits(connect_timeout_s=TIMEOUT_S, max_attempts=1)) as client:
            version, told = await asyncio.gather(
                _json(client, "/version"), _json(client, "/server_info")
            )
    except (ServeEvalError, OSError, ValueError):  # ValueError: an invalid address.
        return worker
    more: dict[str, Any] = {}
    if isinstance(version, dict) and "version" in version:
        more["version"] = str(version["version"])
    if isinstance(told, dict):
        more["server_info"] = told
    return structs.replace(worker, **more)


def _mask(found: DeploymentInfo, client: Client) -> DeploymentInfo:
    """Return the deployment as plain JSON without secrets, so that it can be saved."""
    plain = msgspec.json.decode(msgspec.json.encode(found, enc_hook=str))
    return msgspec.convert(client.masking.value(plain), DeploymentInfo)


def describe(info: ServerInfo) -> dict[str, str]:
    """Return a text for people about each kind of server."""
    if info.deployment is None:
        return {}
    kinds: dict[str, list[DeployedServer]] = {}
    for one in info.deployment.servers:
        kinds.setdefault(one.role or FRONT, []).append(one)
    found = {}
    for role, ones in kinds.items():
        texts = dict.fromkeys(_describe(one) for one in ones)
        what = "; ".join(text for text in texts if text) or "nothing else is known"
        alone = role in (FRONT, SERVER)
        found[role if alone else f"{role} servers"] = what if alone else f"{len(ones)}: {what}"
    return found


def _describe(one: DeployedServer) -> str:
    said = [] if one.version is None else [f"version {one.version}"]
    said += [f"{name} {size}" for name, size in (one.parallelism or {}).items()]
    said += [f"{key} {value}" for key, value in _flat(one.config or {}) if key not in _NOT_SHOWN]
    return ", ".join(said)


_NOT_SHOWN = {"hostname", "port", *(key for _, key in SIZES.values())}


def _flat(config: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Yield the entries of a config with their paths.

    Leaves out addresses, which do not affect how the server answers.
    """
    for key, value in config.items():
        if key in ("urls", "disagg_cluster"):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield (
                f"{before}{key}",
                str(value).lower() if value is None or isinstance(value, bool) else str(value),
            )


def chunk_sizes(info: ServerInfo) -> list[int]:
    """Return the lengths, in tokens, at which the configs split long prompts into chunks."""
    configs = [one.config or {} for one in info.workers if one.role != "generation"]
    sizes = [
        config.get("max_num_tokens") for config in configs if config.get("enable_chunked_prefill")
    ]
    return [size for size in dict.fromkeys(sizes) if isinstance(size, int)]


def remarks(info: ServerInfo) -> list[str]:
    """Return what a reader of the verdict should know about the deployment."""
    known = info.deployment
    if known is None:
        return []
    return [*_sizes_differ(known), *_versions_differ(known), *_came_and_left(known)]


def _sizes_differ(known: DeploymentInfo) -> list[str]:
    sizes = {
        role: {
            ", ".join(f"{name} {size}" for name, size in one.parallelism.items())
            for one in known.workers
            if one.role == role and one.parallelism is not None
        }
        for role in ROLES.values()
    }
    context, generation = (sizes[role] for role in ROLES.values())
    if not context or not generation or context == generation:
        return []
    return [
        f"asymmetric parallelism: context servers have {' and '.join(sorted(context))}, generation"
        f" servers {' and '.join(sorted(generation))}; such a pair was reported to give wrong"
        " answers (TensorRT-LLM issue 6507): compare with a pair of equal sizes"
    ]


def _versions_differ(known: DeploymentInfo) -> list[str]:
    by_version: dict[str, list[str]] = {}
    for one in known.servers:
        if one.version is not None:
            by_version.setdefault(one.version, []).append(one.name)
    if len(by_version) < 2:
        return []
    each = "; ".join(f"{version}: {', '.join(names)}" for version, names in by_version.items())
    return [f"several versions serve together: {each}"]


def _came_and_left(known: DeploymentInfo) -> list[str]:
    if known.cluster_before is None or known.cluster_after is None:
        return []
    before, after = (
        {f"{one.role} server {one.url.removeprefix('http://')}" for one in list_registered(cluster)}
        for cluster in (known.cluster_before, known.cluster_after)
    )
    found = []
    if left := sorted(before - after):
        found.append(f"{len(left)} servers left the deployment during the run: {', '.join(left)}")
    if came := sorted(after - before):
        found.append(f"{len(came)} servers joined the deployment during the run: {', '.join(came)}")
    if known.cluster_before.get("is_ready") and not known.cluster_after.get("is_ready"):
        found.append("the orchestrator no longer reported itself ready when the run ended")
    return found


def first_tokens(tasks: Iterable[Task]) -> str | None:
    """Return a warning if the context servers alone decide every answer."""
    if any(task.sampling.max_tokens > FEW_TOKENS for task in tasks):
        return None
    return (
        "the first token decides every answer here: in a disaggregated deployment it comes from a"
        " context server, so the generation servers are not tested. Add a task with long answers,"
        " such as gsm8k"
    )


_NOT_INHERITED = ("external", "kubernetes", "simulated", "embedded", "container")
"""Launchers whose servers inherit none of our variables."""


def check_inherited(plan: Plan) -> None:
    """Raise PlanError for variables that make answers meaningless and that servers inherit."""
    if not plan.allow_meaningless and (found := list_inherited(plan, os.environ)):
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


MOST_SETTINGS_BYTES = 4 * 1024 * 1024
ROUTES = ("/server_info",)


async def learn_settings(plan: Plan, endpoint: Endpoint, client: Client) -> Endpoint:
    """Return the endpoint with the meaningless settings that its servers tell.

    Raises EndpointError if there are any that the plan does not allow. Nothing is asked of an
    endpoint that reports no version.
    """
    found = list(_find_in_pods(endpoint))
    if endpoint.info.version is not None:
        told = [
            _ask_for_settings(name, url, endpoint, client)
            for name, url, _ in list_servers(endpoint)
        ]
        found += [one for ones in await asyncio.gather(*told) for one in ones]
    lines = tuple(dict.fromkeys(map(str, found)))
    if lines and not plan.allow_meaningless:
        raise EndpointError("\n".join(lines), hint=HINT)
    return endpoint.with_info(meaningless=lines) if lines else endpoint


async def _ask_for_settings(
    name: str, url: str, endpoint: Endpoint, client: Client
) -> list[MeaninglessSetting]:
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
        if (told := await _json(client, route, MOST_SETTINGS_BYTES)) is not None:
            return told
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
