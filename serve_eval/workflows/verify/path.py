"""Prove the path of the probes: count what the servers behind an endpoint did with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from serve_eval.evaluation.endpoint import deployment
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence import engine_counters
from serve_eval.evidence.engine_counters import Companions, SessionMeter
from serve_eval.evidence.path_proof import count_moved
from serve_eval.schema import Endpoint, ServerCounts
from serve_eval.workflows.verify.legs import GivenWorker


class PathMeter:
    """Reads the counters of the servers behind one endpoint before and after the probes.

    The servers are those that the user named, or those that the launcher or the orchestrator names.
    """

    def __init__(self, server: AskedServer, given: Sequence[GivenWorker] = ()) -> None:
        self._client = server.client
        self._given = {
            f"{one.role}_{number}": str(one.named.plan.launcher.options["base_url"])
            for number, one in enumerate(given)
        }
        self._endpoint: Endpoint = server.client.endpoint
        self._meter: SessionMeter | None = None

    async def begin(self) -> None:
        """Read the counters. Nothing is counted of servers that have none."""
        self._endpoint = await deployment.learn_deployment(self._endpoint, self._client)
        if self._given:
            info = msgspec.structs.replace(
                self._endpoint.info, servers=self._given, deployment=None
            )
            self._endpoint = replace(self._endpoint, info=info)
        self._meter = await engine_counters.begin(self._endpoint, self._client, 0, Companions())

    async def end(self) -> tuple[ServerCounts, ...]:
        """Return what was counted since then."""
        if self._meter is None:
            return ()
        found = await engine_counters.end(
            self._meter, self._endpoint, self._client, 0, Companions()
        )
        return found.servers


def describe_path(servers: Sequence[ServerCounts]) -> Iterator[str]:
    """Yield what the counters say about the transfer of the KV cache. Pure."""
    moved = count_moved(servers)
    if moved is not None:
        tokens, of = moved
        yield f"KV transfer: {tokens:,} of {of:,} prompt tokens came from other servers"


def warn_of_path(name: str, servers: Sequence[ServerCounts]) -> Iterator[str]:
    """Yield a warning if generation servers took over no KV cache, or some of it failed. Pure."""
    moved = count_moved(servers)
    if moved is not None and moved[1] and not moved[0]:
        yield (
            f"{name}: no KV cache crossed the wire: its generation servers computed all"
            f" {moved[1]:,} prompt tokens themselves, so the transfer was not tested"
        )
    for remark in engine_counters.list_transfer_faults(servers):
        yield f"{name}: {remark}"
