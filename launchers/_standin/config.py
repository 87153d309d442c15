"""Read the configuration file of an orchestrator, and the key that it shares with its workers.

Refusals are the plain Python errors of the real software, which end its process with exit code 1.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from serve_eval.launchers._standin.etcd import SCHEME
from serve_eval.launchers._standin.options import Flavour

Role = Literal["ctx", "gen"]
ROLE_NUMBERS: dict[str, int] = {
    "CONTEXT": 0,
    "GENERATION": 1,
    "MM_ENCODER": 2,
    "VISUAL_GEN": 3,
    "EMBEDDING": 4,
}
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
SECTIONS: dict[str, Role] = {"context_servers": "ctx", "generation_servers": "gen"}


@dataclass(frozen=True)
class ClusterSection:
    """The section `disagg_cluster`."""

    cluster_uri: str
    cluster_name: str = ""
    minimal_instances: Mapping[str, int] = field(
        default_factory=lambda: {"context_servers": 1, "generation_servers": 1}
    )
    heartbeat_interval_sec: int = 5
    inactive_timeout_sec: int = 10

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> ClusterSection:
        for key in section:
            if key not in cls.__dataclass_fields__:
                raise KeyError(f"Key {key} not found in DisaggClusterConfig")
        section["cluster_uri"]
        return cls(**section)


class NamedWorker(NamedTuple):
    """A worker that the orchestrator's file names."""

    type: Role
    hostname: str | None
    port: int | None
    instance_num_ranks: int
    other_args: dict[str, Any]


class RouterSection(NamedTuple):
    type: str
    args: dict[str, Any]
    server_role: int


@dataclass(frozen=True)
class Orchestrator:
    """The file of `trtllm-serve disaggregated`."""

    servers: Sequence[NamedWorker]
    ctx_router: RouterSection
    gen_router: RouterSection
    hostname: str = "localhost"
    port: int | str = 8000
    max_retries: int = 1
    perf_metrics_max_requests: int = 0
    return_perf_metrics: bool = False
    perf_metrics_output_dir: str | None = None
    conditional_disagg_config: Mapping[str, Any] | None = None
    otlp_config: Mapping[str, Any] | None = None
    cluster: ClusterSection | None = None
    auth_key: str | None = None
    node_id: int = 1
    schedule_style: str = "context_first"
    num_workers: int = 1

    def urls(self, role: Role) -> list[str]:
        return [
            f"{server.hostname}:{server.port}" for server in self.servers if server.type == role
        ]


_OWN_KEYS = frozenset({
    "hostname", "port", "max_retries", "perf_metrics_max_requests", "conditional_disagg_config",
    "otlp_config", "disagg_cluster", "node_id", "schedule_style",
})  # fmt: skip
_MAIN_KEYS = frozenset({
    "return_perf_metrics", "perf_metrics_output_dir", "allow_request_chat_template",
    "gen_strip_message_history", "gen_tokids_ctxbytes", "num_workers", "disagg_coordinator_url",
    "server_keep_alive_timeout", "internal_request_auth_key",
})  # fmt: skip
_ROUTER_ARGS = ("max_batch_size", "max_num_tokens")


def orchestrator(document: Mapping[str, Any], flavour: Flavour = "v12") -> Orchestrator:
    """Return the contents of the parsed file.

    Both sections inherit unknown keys at the top, including typing errors.
    """
    known = _OWN_KEYS | (_MAIN_KEYS if flavour == "main" else frozenset())
    own = {key: value for key, value in document.items() if key in known}
    inherited = {k: v for k, v in document.items() if k not in known and k not in SECTIONS}
    node_id = own.get("node_id", 1)
    if not 0 <= node_id < 256:
        raise ValueError(f"node_id must be in range [0, 256), got {node_id}")
    cluster = own.pop("disagg_cluster", None)
    parsed_cluster = ClusterSection.of(cluster) if cluster is not None else None
    servers: list[NamedWorker] = []
    routers = []
    for number, (name, role) in enumerate(SECTIONS.items()):
        section = dict(document.get(name) or {})
        for key, value in inherited.items():
            if section.setdefault(key, value) != value:
                raise ValueError(
                    f"Parameter {key} is specified both in the top-level and in the {name} section,"
                    " but with different values"
                )
        router = dict(section.pop("router", None) or {})
        kind = router.pop("type", "round_robin")
        router.update({key: section[key] for key in _ROUTER_ARGS if key in section})
        routers.append(RouterSection(kind, router, number))
        if parsed_cluster is None:
            servers += _servers(role, section)
    if parsed_cluster is not None:
        check_storage(parsed_cluster.cluster_uri, flavour)
        if flavour == "main":
            _check_scope(parsed_cluster.cluster_uri, own.get("hostname", "localhost"))
    fields = {key: own[key] for key in own if key in Orchestrator.__dataclass_fields__}
    fields["auth_key"] = own.get(KEY)
    return Orchestrator(
        servers=servers,
        ctx_router=routers[0],
        gen_router=routers[1],
        cluster=parsed_cluster,
        **fields,
    )


def check_storage(uri: str, flavour: Flavour) -> None:
    """Raise ValueError for an address of the service discovery that this version does not accept.

    Only main accepts etcd.
    """
    if not uri.startswith(("http", SCHEME) if flavour == "main" else "http"):
        raise ValueError(f"Invalid cluster storage URI: {uri}")


def _check_scope(uri: str, hostname: str) -> None:
    if uri.startswith("http") and not {urlsplit(uri).hostname, hostname.lower()} <= LOOPBACK:
        raise ValueError(
            f"HTTP cluster storage is loopback-only, got {uri} and hostname {hostname}; use etcd://"
        )


def _servers(role: Role, section: dict[str, Any]) -> list[NamedWorker]:
    urls = section.pop("urls", None)
    count = section.pop("num_instances", len(urls) if urls else 1)
    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
        ranks *= section.get(name, 1)
    if urls is None:
        return [NamedWorker(role, None, None, ranks, section) for _ in range(count)]
    if len(urls) != count:
        raise ValueError(
            f"Number of urls ({len(urls)}) does not match the number of instances ({count})"
        )
    servers = []
    for url in urls:
        host, port = url.split(":")
        servers.append(NamedWorker(role, host, int(port), ranks, section))
    return servers


KEY = "internal_request_auth_key"
HEADER = "x-trtllm-disagg-auth"
ENFORCED = "STANDIN_AUTH_ENFORCED"
"""If 1, a request without a key is an error, as in some states of main; else a warning."""
_SIGNED = ("ctx_info_endpoint", "encoded_opaque_state")
_MISSING = (
    "Internal disaggregated authentication key is required for protected disaggregated request"
    f" fields. In a future release the requirement to use {KEY} will be enforced."
)
_REQUIRED = "Internal disaggregated authentication key is required"


def headers(key: str | None, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that an orchestrator adds.

    Raises ValueError if a required key is missing.
    """
    return {HEADER: _signature(key, params)} if _must_sign(params) and _is_set(key) and key else {}


def check(key: str | None, params: Mapping[str, Any] | None, sent: Mapping[str, str]) -> None:
    """Raise ValueError for a request that is not signed with the key of this worker."""
    if params is None or not _must_sign(params) or not _is_set(key) or not key:
        return
    if not hmac.compare_digest(sent.get(HEADER, ""), _signature(key, params)):
        raise ValueError("Invalid internal disaggregated request authentication")


def _must_sign(params: Mapping[str, Any]) -> bool:
    return any(params.get(name) is not None for name in _SIGNED)


def _is_set(key: str | None) -> bool:
    if not key and os.environ.get(ENFORCED) == "1":
        raise ValueError(_REQUIRED)
    if not key:
        _warn()
    return bool(key)


@cache
def _warn() -> None:
    """Warn once in a process, as Python does.

    An exception, where tests turn warnings into errors, would not be imitated.
    """
    sys.stderr.write(f"disagg_auth.py: FutureWarning: {_MISSING}\n")


def _signature(key: str, params: Mapping[str, Any]) -> str:
    signed = {name: params.get(name) for name in _SIGNED}
    for name, value in signed.items():  # of several addresses, the first is signed
        signed[name] = next(iter(value), None) if isinstance(value, list) else value
    payload = json.dumps(signed, sort_keys=True, separators=(",", ":"))
    return "sha256=" + hmac.new(key.encode(), payload.encode(), hashlib.sha256).hexdigest()
