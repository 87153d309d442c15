"""Agree the settings of disaggregated servers, and write the file of their orchestrator.

Pure.

The 1.2 line reports at GET /perf_metrics. It takes unknown keys in the orchestrator's file for
arguments of workers that it does not start, and ignores unknown variables. Main has no such route:
its orchestrator writes files, and reports in responses. The reports that arrive show which of them
a version does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serve_eval.errors import PlanError
from serve_eval.launchers._machine import hosts
from serve_eval.launchers._trtllm import kv_transfer, version
from serve_eval.schema import PerfMetricsFolders

TRANSCEIVER = "cache_transceiver_config"
CACHE_TYPE = "kv_cache_config.dtype"
BLOCK_SIZE = "kv_cache_config.tokens_per_block"
DEFAULT_BLOCK = 32
"""Tokens per block of the KV cache where a config does not set it."""
CLUSTER = "disagg_cluster"
OWN = ("hostname", "port", "context_servers", "generation_servers", CLUSTER, kv_transfer.NAME)
"""Keys of the orchestrator's file that the launcher writes."""
FLEET, COORDINATOR = "num_workers", "disagg_coordinator_url"
"""Keys for several processes that share the orchestrator's port, and for the one that routes for
them: above 1 it starts itself, on the port below."""
KNOWN = (
    FLEET,
    "max_retries",
    "perf_metrics_max_requests",
    "conditional_disagg_config",
    "otlp_config",
    "node_id",
    "schedule_style",
    "return_perf_metrics",
    "perf_metrics_output_dir",
    "allow_request_chat_template",
    "gen_strip_message_history",
    "gen_tokids_ctxbytes",
    "server_keep_alive_timeout",
)
"""Further keys. The orchestrator takes any other key, even a typo, for an argument of the workers,
without a warning."""
HEARTBEAT_S, INACTIVE_S = 5, 10
ETCD = re.compile(r"etcd://(\[[0-9a-fA-F:]+\]|[^\s/@:,\[\]]+):\d{1,5}")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that versions with a limit accept as loopback: names and addresses as they are written."""


def agree_configs(
    context: Mapping[str, Any],
    generation: Mapping[str, Any],
    transceiver: Mapping[str, Any],
    cache_types: Sequence[str | None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configs of both sides, with `transceiver` if neither has one.

    `cache_types` are the KV cache types of the command lines. The overlap scheduler is off on
    context servers unless their config sets it, as older versions refuse it there. Raises PlanError
    if the sides differ in settings that must be the same, which the servers themselves do not
    diagnose.
    """
    sides = {"context_servers": dict(context), "generation_servers": dict(generation)}
    if not any(TRANSCEIVER in side for side in sides.values()):
        for side in sides.values():
            side[TRANSCEIVER] = dict(transceiver)
    problems = [*_differences(sides, cache_types), *_own_problems(sides)]
    if problems:
        raise PlanError(problems, hint="Correct the config of one side or of both.")
    sides["context_servers"].setdefault("disable_overlap_scheduler", True)
    return sides["context_servers"], sides["generation_servers"]


def _differences(
    sides: Mapping[str, Mapping[str, Any]], cache_types: Sequence[str | None]
) -> Iterator[str]:
    """Yield the settings that differ but must be the same on both sides.

    Of the transceiver these are the library and the implementation. Sizes of buffers and time
    limits are each side's own.
    """
    lacking = [name for name, side in sides.items() if TRANSCEIVER not in side]
    if len(lacking) == 1:
        [other] = sides.keys() - lacking
        yield f"launcher.{lacking[0]}: {TRANSCEIVER} is missing, and {other} have one"
        return
    same = {
        f"{TRANSCEIVER}.backend": f"the backend of {TRANSCEIVER}",
        f"{TRANSCEIVER}.transceiver_runtime": f"the transceiver_runtime of {TRANSCEIVER}",
        CACHE_TYPE: "the type of the KV cache",
        BLOCK_SIZE: "the block size of the KV cache",
        "guided_decoding_backend": "the backend of guided decoding",
    }
    for path, name in same.items():
        values = [_at(side, path) for side in sides.values()]
        if path == CACHE_TYPE:
            values = [given or value for given, value in zip(cache_types, values, strict=True)]
        first, second = (_normalise(path, value) for value in values)
        if first != second:
            yield (
                f"launcher: {name} differs: context servers {values[0]}, generation servers"
                f" {values[1]}"
            )


def _normalise(path: str, value: Any) -> Any:
    """Return a value as versions read it: without case, and the default where none is set."""
    if path == BLOCK_SIZE:
        return DEFAULT_BLOCK if value is None else value
    if isinstance(value, str):
        value = value.lower()
    return None if value == "auto" else value


def _own_problems(sides: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield settings of a side that cannot work, or that the launcher writes itself."""
    for name, side in sides.items():
        if CLUSTER in side:
            yield f"launcher.{name}: {CLUSTER} is written by the launcher: set discovery instead"
        if kv_transfer.NAME in side:
            yield (
                f"launcher.{name}: {kv_transfer.NAME}: the launcher draws one, and a"
                " plan must not contain a secret"
            )
        given = side.get(TRANSCEIVER)
        if given is not None and not (isinstance(given, Mapping) and given.get("backend")):
            yield f"launcher.{name}: {TRANSCEIVER} has no backend, which disables it"


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def etcd(discovery: bool | str) -> str | None:
    """Return the addresses of etcd; None for the orchestrator's own discovery.

    Raises PlanError for other addresses.
    """
    if isinstance(discovery, bool):
        return None
    addresses = discovery.split(",")
    if not all(ETCD.fullmatch(address) for address in addresses):
        raise PlanError(
            f"launcher.discovery: {discovery}: not an address of etcd",
            hint="Give true, or etcd://HOST:PORT; separate several addresses with commas.",
        )
    return discovery


def cluster(
    host: str,
    port: int,
    context: int,
    generation: int,
    *,
    etcd: str | None = None,
    tag: str | None = None,
) -> dict[str, Any]:
    """Return the section for service discovery, the same for all servers.

    Its name keeps launches apart. In an etcd, which others use too, it contains the `tag` that no
    other launch has.
    """
    name = f"serve-eval-{port}"
    return {
        "cluster_uri": etcd or f"http://{host}:{port}",
        "cluster_name": f"{name}-{tag}" if etcd and tag else name,
        "minimal_instances": {"context_servers": context, "generation_servers": generation},
        "heartbeat_interval_sec": HEARTBEAT_S,
        "inactive_timeout_sec": INACTIVE_S,
    }


def list_refused(section: Mapping[str, Any] | None, hostname: str) -> dict[str, str]:
    """Return what a version that limits discovery over HTTP to one machine does not do.

    The key is the option by which such a version is recognised.
    """
    uri = urlsplit(section["cluster_uri"]) if section is not None else None
    if uri is None or uri.scheme != "http" or {uri.hostname, hostname.lower()} <= {*LOOPBACK}:
        return {}
    beyond = hostname if hostname.lower() not in LOOPBACK else uri.hostname
    return {
        version.NEWEST: (
            "launcher.discovery: this version lets servers register over HTTP on"
            f" loopback only, but the orchestrator would listen at {beyond}: give"
            " discovery: etcd://HOST:PORT, or leave it out"
        )
    }


def orchestrator(
    host: str,
    port: int,
    addresses: Mapping[str, list[str]],
    routers: Mapping[str, str | Mapping[str, Any] | None],
    discovery: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of the orchestrator's file; `more` are the user's own keys.

    Raises PlanError for an unknown key, a router without a known type, and an IPv6 address.
    """
    for key in more:
        if key in OWN:
            raise PlanError(f"launcher.orchestrator.{key}: is written by the launcher")
        if key == COORDINATOR:
            raise PlanError(
                f"launcher.orchestrator.{key}: the launcher starts no coordinator elsewhere, and"
                " could not tell its requests from those of others",
                hint=f"Give {FLEET}: an orchestrator with several processes starts a coordinator.",
            )
        if key not in KNOWN:
            raise PlanError(
                f"launcher.orchestrator.{key}: unknown key", hint=f"Known: {', '.join(KNOWN)}."
            )
    _check_fleet(more.get(FLEET, 1), discovery)
    # A hidden retry would send the same request twice and hide the failure.
    content: dict[str, Any] = {
        "hostname": hosts.check_ipv4(host),
        "port": port,
        "max_retries": 0,
        **more,
    }
    for side, urls in addresses.items():
        content[side] = {"num_instances": len(urls)}
        if discovery is None:
            content[side]["urls"] = urls
        router = routers[side]
        if router is not None:
            content[side]["router"] = version.section(side, router)
    if discovery is not None:
        content[CLUSTER] = dict(discovery)
    return content


def _check_fleet(count: object, discovery: Mapping[str, Any] | None) -> None:
    """Raise PlanError for a number of orchestrator processes that cannot work."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise PlanError(f"launcher.orchestrator.{FLEET}: {count!r} is not a number of processes")
    if count > 1 and discovery is not None and urlsplit(discovery["cluster_uri"]).scheme == "http":
        raise PlanError(
            f"launcher.orchestrator.{FLEET}: servers register at one process, and {count} would"
            " share its port",
            hint="Leave discovery out, or give discovery: etcd://HOST:PORT.",
        )


def list_coordinator_ports(port: int, content: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the further ports that the orchestrator of this file binds."""
    return (port - 1,) if content.get(FLEET, 1) > 1 else ()


WORKER = {"return_perf_metrics": True, "perf_metrics_max_requests": 10_000}
"""Makes a worker keep reports of its last requests until they are read. A worker of the 1.2 line
refuses keys that it does not know, so this has none that only main knows."""
TRACE_VARIABLE = "TRTLLM_REQUEST_TRACE_DIR"
"""For the orchestrator alone: its workers leave out what it sends them."""


def orchestrator_keys(log_dir: Path) -> dict[str, Any]:
    """Return the keys of the orchestrator's file."""
    return {**WORKER, "perf_metrics_output_dir": str(log_dir / "perf_metrics")}


def orchestrator_env(log_dir: Path) -> dict[str, str | None]:
    """Return the variables of the orchestrator."""
    return {TRACE_VARIABLE: str(log_dir / "request_traces")}


def locate_folders(file: Mapping[str, Any], env: Mapping[str, str | None]) -> PerfMetricsFolders:
    """Return where an orchestrator with this file and these variables writes."""
    return PerfMetricsFolders(
        output_dir=file.get("perf_metrics_output_dir"), trace_dir=env.get(TRACE_VARIABLE)
    )
