"""Run the servers of `trtllm` or `trtllm_disaggregated` in Docker or Podman containers."""

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
from serve_eval.launchers._trtllm import containers, deployments, kv_transfer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.containers import Container
from serve_eval.launchers._trtllm.deployments import DeploymentChoice, Disaggregated
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
class ContainerOptions(Container, DeploymentChoice, GpuChoice, FrontDoor, TimeLimits):
    """Choose what the containers serve, the GPUs, the address and the time limits."""


def commands(context: LaunchContext, options: ContainerOptions) -> list[list[str]]:
    """Return the `run` lines that `launch` would start.

    The names of the containers lack their unique part.
    """
    return [one.line() for one in adapt_shown(_servers(context, options))]


def files(context: LaunchContext, options: ContainerOptions) -> Mapping[Path, str]:
    """Return the config files that `launch` would write, by path."""
    return {
        path: text
        for server in adapt_shown(_servers(context, options))
        for path, text in server.files.items()
    }


def job_size(context: LaunchContext, options: ContainerOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for these servers.

    Raises PlanError as `commands` does.
    """
    parts = list_parts(deployments.choose_deployment(options), context)
    _servers(context, replace(options, gpus=gpus_of_a_job(parts, options.gpus)))
    return size_on_one_node(parts)


def expects(context: LaunchContext, options: ContainerOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployments.list_expected(deployments.choose_deployment(options))


def lint(context: LaunchContext, options: ContainerOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    return deployments.list_disagreements(deployments.choose_deployment(options), context.model)


@asynccontextmanager
async def launch(context: LaunchContext, options: ContainerOptions) -> AsyncIterator[Endpoint]:
    """Start each server in its own container, wait for a completion, and yield the endpoint.

    In addition to `mounts`, the config files and the run's logs are mounted under their own path.
    With `mount_paths` so are full paths on the command lines.

    Raises PlanError if options contradict each other, LaunchError if a server does not start or
    ends.
    """
    deployment = deployments.choose_deployment(options)
    planned = _servers(context, options)  # report wrong options before looking for GPUs
    ways = _ways(options)
    if len(planned) > 1:
        ways = replace(ways, nvlink=await asyncio.to_thread(kv_transfer.nvlink))
    ports = free_ports(options.host, options.port, len(planned) - 1)
    async with (
        fleet_session.reserve(options.gpus, planned, context.notify) as reserved,
        session(
            _servers(
                context, replace(options, gpus=reserved.gpus), ports, uuid.uuid4().hex[:12], ways
            ),
            context,
            launcher="container",
            model=context.model or str(deployment.model),
            limits=options,
            cluster=isinstance(deployment, Disaggregated) and bool(deployment.discovery),
            transfer=summarise_transfer(deployment, context, ways),
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def _ways(options: ContainerOptions) -> Ways:
    """Return the variables from the user; a container gets only those that are named."""
    named = {*options.pass_env, *deployments.choose_deployment(options).pass_env}
    return Ways(own=kv_transfer.list_inherited(named) & named)


def _servers(
    context: LaunchContext,
    options: ContainerOptions,
    ports: list[int] | None = None,
    launch: str = "",
    ways: Ways | None = None,
) -> list[Server]:
    deployment = deployments.choose_deployment(options)
    containers.check(options, deployment, deployments.list_models(deployment, context))
    context = replace(context, log_dir=context.log_dir.absolute())  # mounted under its own path
    placed = fleet_session.place_parts(
        list_parts(deployment, context),
        gpus=options.gpus,
        host=options.host,
        port=options.port,
        ports=ports,
    )
    limit = options.ready_timeout_s
    ways = ways or _ways(options)
    servers = build_servers(
        deployment, context, placed, ready_timeout_s=limit, ways=ways, tag=launch or None
    )
    return [containers.wrap(server, options, launch) for server in servers]
