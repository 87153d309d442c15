"""List the servers of a deployment, from an orchestrator's reply or from a launcher's commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from serve_eval.schema import DeployedServer, Endpoint, ServerInfo
from serve_eval.schema.base_url import authority

FRONT, SERVER = "orchestrator", "server"
SIZES = {
    "tp": ("--tp_size", "tensor_parallel_size"),
    "pp": ("--pp_size", "pipeline_parallel_size"),
    "cp": ("--cp_size", "context_parallel_size"),
    "ep": ("--ep_size", "moe_expert_parallel_size"),
}
"""Parallel sizes by our short names: the flag of trtllm-serve, and the key of its config."""
ROLES = {"context_servers": "context", "generation_servers": "generation"}


def list_registered(cluster: Mapping[str, Any] | None) -> list[DeployedServer]:
    """Return the servers that an orchestrator lists: none if their addresses are in a file."""
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


def list_servers(endpoint: Endpoint) -> list[tuple[str, str, str | None]]:
    """Return the name, the address and the role of each server that answers for the endpoint."""
    info = endpoint.info
    if info.workers:
        return [(one.name, one.url, one.role) for one in info.workers]
    servers = {name: url for name, url in (info.servers or {}).items() if name != FRONT}
    if len(servers) < 2:
        return [(SERVER, endpoint.base_url, None)]
    roles = {name: name.rpartition("_")[0] for name in servers}
    return [
        (name, url, roles[name] if roles[name] in ROLES.values() else None)
        for name, url in servers.items()
    ]


def list_launched(info: ServerInfo) -> list[DeployedServer]:
    """Return the servers that a launcher started, with the configs that it wrote. Reads files."""
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
    """Return the content of a command line's config file, or None if it cannot be read here."""
    import yaml

    file = _after(words, "--config") or _after(words, "-c")
    try:
        content = None if file is None else yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError):
        return None
    return content if isinstance(content, dict) else None


def _sizes(words: Sequence[str], config: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that are set; tp defaults to 1."""
    found = {"tp": 1}
    for name, (flag, key) in SIZES.items():
        size = str(config.get(key) or _after(words, flag) or "")
        if size.isdecimal():
            found[name] = int(size)
    return found


def _after(words: Sequence[str], flag: str) -> str | None:
    return next((after for word, after in pairwise(words) if word == flag), None)
