"""What is known of a deployment of trtllm-serve: its servers, their versions, configs and sizes,
and who came and left.

Recorded, shown and warned of; no run fails for a route that is missing. Nothing is asked of an
endpoint that does not say a version, and nothing beyond /cluster_info of one that has no such route
and that no launcher of ours started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from serve_eval.errors import ServeEvalError
from serve_eval.schema import (
    DeployedServer,
    DeploymentInfo,
    Endpoint,
    Failure,
    Limits,
    ServerInfo,
    Task,
)
from serve_eval.schema.base_url import authority, normalise_base_url

if TYPE_CHECKING:
    from serve_eval.client.client import Client

TIMEOUT_S = 5.0
MOST_BYTES = 256 * 1024
LAUNCHERS = ("trtllm", "trtllm_disaggregated", "container", "slurm")
FRONT, SERVER = "orchestrator", "server"
SIZES = {
    "tp": ("--tp_size", "tensor_parallel_size"),
    "pp": ("--pp_size", "pipeline_parallel_size"),
    "cp": ("--cp_size", "context_parallel_size"),
    "ep": ("--ep_size", "moe_expert_parallel_size"),
}
"""Sizes of parallelism by our short names: the flag of trtllm-serve, and the key of its config."""
ROLES = {"context_servers": "context", "generation_servers": "generation"}
FEW_TOKENS = 2
"""Tokens up to which an answer is decided by its first one: a letter, and perhaps a space before it
or a dot."""


async def learn_deployment(endpoint: Endpoint, client: Client) -> Endpoint:
    """The endpoint with what is known of its deployment at the beginning of a session."""
    info = endpoint.info
    if info.version is None:
        return endpoint
    cluster = await _cluster(client)
    ours = info.launcher in LAUNCHERS
    if cluster is None and not ours:
        return endpoint
    launched = await asyncio.to_thread(_list_launched, info) if ours else []
    workers = [one for one in launched if one.role != FRONT] or _list_registered(cluster)
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
    """The same at the end of the session."""
    known = endpoint.info.deployment
    if known is None or not known.disaggregated or (cluster := await _cluster(client)) is None:
        return endpoint
    return endpoint.with_info(
        deployment=_mask(structs.replace(known, cluster_after=cluster), client)
    )


# ----------------------------------------------------------------------------------------------
# finding it out


async def _cluster(client: Client) -> dict[str, Any] | None:
    """What an orchestrator tells of its servers; None where there is none."""
    told = await _json(client, "/cluster_info")
    return told if isinstance(told, dict) and "is_ready" in told else None


async def _json(client: Client, path: str) -> object:
    """What a route beside /v1 answers; None where it does not, or not with JSON."""
    root = urlsplit(client.endpoint.base_url).path.removesuffix("/v1")
    reply = await client.exchange("GET", root + path, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES)
    if isinstance(reply, Failure) or reply.error is not None or reply.status != 200:
        return None
    try:
        found: object = msgspec.json.decode(reply.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def _list_registered(cluster: Mapping[str, Any] | None) -> list[DeployedServer]:
    """The servers that an orchestrator lists; with addresses in a file it lists none."""
    workers = (cluster or {}).get("current_workers")
    found = []
    for kind, role in ROLES.items():
        listed = workers.get(kind) if isinstance(workers, Mapping) else None
        for i, one in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(one, Mapping) and "host" in one and "port" in one:
                url = f"http://{authority(str(one['host']), one['port'])}"
                found.append(
                    DeployedServer(
                        name=str(one.get("worker_id", f"{role}_{i}")), role=role, url=url
                    )
                )
    return found


def _list_launched(info: ServerInfo) -> list[DeployedServer]:
    """The servers that a launcher started, with the configs that it wrote. Reads files."""
    found = []
    for (name, url), words in zip((info.servers or {}).items(), info.commands or (), strict=False):
        config = _config(words)
        if name == FRONT:
            found.append(DeployedServer(name=name, role=FRONT, url=url, config=config))
            continue
        role = name.rpartition("_")[0]
        role = role if role in ROLES.values() else SERVER
        sizes = _sizes(words, config or {})
        found.append(
            DeployedServer(name=name, role=role, url=url, parallelism=sizes, config=config)
        )
    return found


def _config(words: Sequence[str]) -> dict[str, Any] | None:
    """The content of the config file that a command line names; None where it cannot be read
    here.
    """
    import yaml

    file = _after(words, "--config") or _after(words, "-c")
    try:
        content = None if file is None else yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None


def _sizes(words: Sequence[str], config: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that are set; tp is 1 unless it is."""
    found = {"tp": 1}
    for name, (flag, key) in SIZES.items():
        size = str(config.get(key) or _after(words, flag) or "")
        if size.isdecimal():
            found[name] = int(size)
    return found


def _after(words: Sequence[str], flag: str) -> str | None:
    return next((after for word, after in pairwise(words) if word == flag), None)


async def _ask(worker: DeployedServer, endpoint: Endpoint) -> DeployedServer:
    """A server with what it says of itself, if it can be reached from here. Keys and a proxy are
    for the front door.
    """
    from serve_eval.client.client import Client  # what only reads a report does without it

    try:
        at = replace(endpoint, base_url=normalise_base_url(worker.url))
        async with Client(at, Limits(connect_timeout_s=TIMEOUT_S, max_attempts=1)) as client:
            version, told = await asyncio.gather(
                _json(client, "/version"), _json(client, "/server_info")
            )
    except (ServeEvalError, OSError, ValueError):  # an address that is none: nothing is known then
        return worker
    more: dict[str, Any] = {}
    if isinstance(version, dict) and "version" in version:
        more["version"] = str(version["version"])
    if isinstance(told, dict):
        more["server_info"] = told
    return structs.replace(worker, **more)


def _mask(found: DeploymentInfo, client: Client) -> DeploymentInfo:
    """As it may be written down: without secrets, and plain JSON."""
    plain = msgspec.json.decode(msgspec.json.encode(found, enc_hook=str))
    return msgspec.convert(client.masking.value(plain), DeploymentInfo)


# ---------------------------------------------------------------------------------------------------
# saying it


def describe(info: ServerInfo) -> dict[str, str]:
    """What is known, for people: a text for each kind of server."""
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
    """The entries of a config with their paths; addresses, which say nothing of how it serves, are
    left out.
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
    """The lengths at which its configs have long prompts cut into chunks."""
    configs = [one.config or {} for one in info.workers if one.role != "generation"]
    sizes = [
        config.get("max_num_tokens") for config in configs if config.get("enable_chunked_prefill")
    ]
    return [size for size in dict.fromkeys(sizes) if isinstance(size, int)]


def remarks(info: ServerInfo) -> list[str]:
    """What a reader of the verdict should know of the deployment."""
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
        f" servers {' and '.join(sorted(generation))}; wrong answers were reported of such a pair"
        " (TensorRT-LLM issue 6507): compare with one of equal sizes"
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
        {_name(one) for one in _list_registered(cluster)}
        for cluster in (known.cluster_before, known.cluster_after)
    )
    found = []
    if left := sorted(before - after):
        found.append(f"{len(left)} servers left the deployment during the run: {', '.join(left)}")
    if came := sorted(after - before):
        found.append(
            f"{len(came)} servers came to the deployment during the run: {', '.join(came)}"
        )
    if known.cluster_before.get("is_ready") and not known.cluster_after.get("is_ready"):
        found.append("the orchestrator did not call itself ready any more when the run ended")
    return found


def _name(one: DeployedServer) -> str:
    return f"{one.role} server {one.url.removeprefix('http://')}"


def first_tokens(tasks: Iterable[Task]) -> str | None:
    """A word of warning where no answer is longer than what a context server alone decides."""
    if any(task.sampling.max_tokens > FEW_TOKENS for task in tasks):
        return None
    return (
        "the first token decides every answer here: behind a disaggregated front door that one"
        " comes from a context server, and nothing is said of the generation servers. Add a task"
        " with long answers, such as gsm8k"
    )
