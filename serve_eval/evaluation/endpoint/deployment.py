"""Find out and describe a trtllm-serve deployment: servers, versions, configs, sizes, changes.

The result is recorded, shown and warned about; a missing route never fails a run. Nothing is asked
of an endpoint that reports no version. Only /cluster_info is asked of an endpoint that lacks this
route and that no launcher of ours started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from serve_eval.errors import ServeEvalError
from serve_eval.evidence.path_facts import (
    FRONT,
    ROLES,
    SERVER,
    SIZES,
    list_launched,
    list_registered,
)
from serve_eval.schema import (
    DeployedServer,
    DeploymentInfo,
    Endpoint,
    Failure,
    Limits,
    ServerInfo,
    Task,
)
from serve_eval.schema.base_url import normalise_base_url

if TYPE_CHECKING:
    from serve_eval.client.client import Client

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


async def _json(client: Client, path: str) -> object:
    """Return the JSON of a route next to /v1, or None if there is none."""
    root = urlsplit(client.endpoint.base_url).path.removesuffix("/v1")
    reply = await client.exchange("GET", root + path, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES)
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
    from serve_eval.client.client import Client  # Programs that only read reports do not need it.

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
        {_name(one) for one in list_registered(cluster)}
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


def _name(one: DeployedServer) -> str:
    return f"{one.role} server {one.url.removeprefix('http://')}"


def first_tokens(tasks: Iterable[Task]) -> str | None:
    """Return a warning if the context servers alone decide every answer."""
    if any(task.sampling.max_tokens > FEW_TOKENS for task in tasks):
        return None
    return (
        "the first token decides every answer here: in a disaggregated deployment it comes from a"
        " context server, so the generation servers are not tested. Add a task with long answers,"
        " such as gsm8k"
    )
