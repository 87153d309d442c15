"""Run one trtllm-serve on GPUs of this machine for the length of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from serve_eval.launchers._fleet import session as fleet_session
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._fleet.session import session
from serve_eval.launchers._options import FrontDoor, GpuChoice, TimeLimits
from serve_eval.launchers._trtllm import deployments
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.deployments import Aggregated
from serve_eval.launchers._trtllm.servers import (
    build_servers,
    gpus_of_a_job,
    list_parts,
    size_on_one_node,
)
from serve_eval.launchers._trtllm.version import adapt_shown
from serve_eval.schema import Endpoint, JobSize, LaunchContext


@dataclass(frozen=True, kw_only=True)
class TrtllmOptions(Aggregated, GpuChoice, FrontDoor, TimeLimits):
    """Choose the options of one server, its GPUs, its address and the time limits."""


def commands(context: LaunchContext, options: TrtllmOptions) -> list[list[str]]:
    """Return the command line, with its environment, that `launch` would start."""
    return [one.line() for one in adapt_shown(_servers(context, options))]


def files(context: LaunchContext, options: TrtllmOptions) -> Mapping[Path, str]:
    """Return the config files that `launch` would write, by path."""
    [server] = _servers(context, options)
    return server.files


def job_size(context: LaunchContext, options: TrtllmOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for these servers.

    Raises PlanError as `commands` does.
    """
    parts = list_parts(options, context)
    _servers(context, replace(options, gpus=gpus_of_a_job(parts, options.gpus)))
    return size_on_one_node(parts)


def expects(context: LaunchContext, options: TrtllmOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployments.list_expected(options)


@asynccontextmanager
async def launch(context: LaunchContext, options: TrtllmOptions) -> AsyncIterator[Endpoint]:
    """Start the server, wait until it answers a completion, and yield its endpoint.

    Raises PlanError if options contradict each other, LaunchError if the server does not start or
    ends.
    """
    shown = _servers(context, options)  # report wrong options before looking for GPUs
    async with (
        fleet_session.reserve(options.gpus, shown, context.notify) as reserved,
        session(
            _servers(
                context,
                replace(options, gpus=reserved.gpus),
                free_ports(options.host, options.port),
            ),
            context,
            launcher="trtllm",
            model=context.model or str(options.model),
            limits=options,
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def _servers(
    context: LaunchContext, options: TrtllmOptions, ports: list[int] | None = None
) -> list[Server]:
    placed = fleet_session.place_parts(
        list_parts(options, context),
        gpus=options.gpus,
        host=options.host,
        port=options.port,
        ports=ports,
    )
    [server] = build_servers(options, context, placed, ready_timeout_s=options.ready_timeout_s)
    # If no port is set, the server finds one itself, so that no other process can take it in
    # between.
    report = context.log_dir / f"{server.name}.address" if options.port is None else None
    return [replace(server, report=report)]
