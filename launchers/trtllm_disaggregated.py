"""Run context and generation servers with an orchestrator on GPUs of this machine.

Each server is a separate trtllm-serve. The deprecated MPI-worker mode (`disaggregated_mpi_worker`)
is not supported.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from serve_eval.launchers._fleet import session as fleet_session
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._fleet.session import session
from serve_eval.launchers._options import FrontDoor, GpuChoice, TimeLimits
from serve_eval.launchers._trtllm import deployments, kv_transfer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.deployments import Disaggregated
from serve_eval.launchers._trtllm.kv_transfer import Ways
from serve_eval.launchers._trtllm.servers import (
    build_servers,
    gpus_of_a_job,
    list_parts,
    size_on_one_node,
    summarise_transfer,
)
from serve_eval.launchers._trtllm.version import adapt_shown
from serve_eval.schema import Endpoint, JobSize, LaunchContext


@dataclass(frozen=True, kw_only=True)
class DisaggregatedOptions(Disaggregated, GpuChoice, FrontDoor, TimeLimits):
    """Choose the servers and their orchestrator, the GPUs, the address and the time limits."""


def commands(context: LaunchContext, options: DisaggregatedOptions) -> list[list[str]]:
    """Return the command lines, with their environments, that `launch` would start."""
    return [one.line() for one in adapt_shown(_servers(context, options))]


def files(context: LaunchContext, options: DisaggregatedOptions) -> Mapping[Path, str]:
    """Return the config files that `launch` would write, by path."""
    return {
        path: text
        for server in adapt_shown(_servers(context, options))
        for path, text in server.files.items()
    }


def job_size(context: LaunchContext, options: DisaggregatedOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for these servers.

    Raises PlanError as `commands` does.
    """
    parts = list_parts(options, context)
    _servers(context, replace(options, gpus=gpus_of_a_job(parts, options.gpus)))
    return size_on_one_node(parts)


def expects(context: LaunchContext, options: DisaggregatedOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployments.list_expected(options)


def lint(context: LaunchContext, options: DisaggregatedOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    return deployments.list_disagreements(options, context.model)


@asynccontextmanager
async def launch(context: LaunchContext, options: DisaggregatedOptions) -> AsyncIterator[Endpoint]:
    """Start all servers, wait for a completion, and yield the orchestrator's endpoint.

    Each server gets its own block of GPUs, context servers first. `host` and `port` are those of
    the orchestrator; the servers bind loopback.

    Raises PlanError if options contradict each other or the GPUs are too few, LaunchError if a
    server does not start or ends.
    """
    planned = _servers(context, options)  # report wrong options before looking for GPUs
    count = sum(side.num_instances for side in options.sides.values())
    ways = replace(_ways(options), nvlink=await asyncio.to_thread(kv_transfer.nvlink))
    ports, tag = free_ports(options.host, options.port, count), uuid.uuid4().hex[:12]
    async with (
        fleet_session.reserve(options.gpus, planned, context.notify) as reserved,
        session(
            _servers(context, replace(options, gpus=reserved.gpus), ports, ways=ways, tag=tag),
            context,
            launcher="trtllm_disaggregated",
            model=context.model or str(options.model),
            limits=options,
            cluster=bool(options.discovery),
            transfer=summarise_transfer(options, context, ways),
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def _ways(options: DisaggregatedOptions) -> Ways:
    return Ways(own=kv_transfer.list_inherited(options.pass_env))


def _servers(
    context: LaunchContext,
    options: DisaggregatedOptions,
    ports: list[int] | None = None,
    ways: Ways | None = None,
    tag: str | None = None,
) -> list[Server]:
    """Return the context servers, the generation servers and the orchestrator."""
    placed = fleet_session.place_parts(
        list_parts(options, context),
        gpus=options.gpus,
        host=options.host,
        port=options.port,
        ports=ports,
    )
    limit = options.ready_timeout_s
    return build_servers(
        options, context, placed, ready_timeout_s=limit, ways=ways or _ways(options), tag=tag
    )
