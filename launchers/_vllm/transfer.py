"""Settings and summary of the KV transfer between vLLM servers. Pure.

By NIXL, the context server returns with its answer where the blocks of the prompt are, and the
generation server fetches them. By a folder, the context server writes a file for each layer, and
the generation server looks for files of the same prompt; the answers do not mention it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._options import LOOPBACK
from serve_eval.schema import KvTransfer

Connector = Literal["nixl", "folder"]
NIXL: Connector = "nixl"
NAMES: Mapping[Connector, str] = {"nixl": "NixlConnector", "folder": "ExampleConnector"}
"""vLLM's own names for the connectors."""
ROLES = {"context_servers": "kv_producer", "generation_servers": "kv_consumer"}
OURS = ("kv_connector", "kv_role", "kv_connector_extra_config.shared_storage_path")
TLS = "UCX_TLS"


def build_config(connector: Connector, kind: str, folder: Path, more: Mapping[str, Any]) -> str:
    """Return the value of --kv-transfer-config for a kind of server.

    `more` are further keys of the plan. Raises PlanError for keys that the launcher sets.
    """
    extra = more.get("kv_connector_extra_config", {})
    if not isinstance(extra, Mapping):
        raise PlanError("launcher.connector_config.kv_connector_extra_config: must be a mapping")
    given = {*more, *(f"kv_connector_extra_config.{key}" for key in extra)}
    for name in OURS:
        if name in given:
            raise PlanError(
                f"launcher.connector_config: {name} is set by the launcher",
                hint="Set launcher.connector, or launcher.kv_folder.",
            )
    config: dict[str, Any] = {"kv_connector": NAMES[connector], "kv_role": ROLES[kind], **more}
    if connector != NIXL:
        config["kv_connector_extra_config"] = {**extra, "shared_storage_path": str(folder)}
    return json.dumps(config)


def list_variables(connector: Connector, side_port: int) -> dict[str, str]:
    """Return the variables of a server. `side_port` is where NIXL servers meet each other."""
    if connector != NIXL:
        return {}
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
    }


def summarise(connector: Connector, env: Mapping[str, Mapping[str, str | None]]) -> KvTransfer:
    """Return the facts for the report. `env` are the plan's variables for each kind of server."""
    found = {kind: given.get(TLS) for kind, given in env.items()}
    tls = [value for value in dict.fromkeys(found.values()) if value is not None]
    if len(set(found.values())) > 1:
        tls = [
            f"{kind.removesuffix('_servers')} {value or 'not set'}" for kind, value in found.items()
        ]
    return KvTransfer(
        backend=NAMES[connector], nvlink=None, ucx_tls=", ".join(tls) if tls else None
    )
