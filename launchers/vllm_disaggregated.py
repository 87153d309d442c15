"""Run context and generation servers of vLLM with an orchestrator on this machine.

The orchestrator belongs to serve-eval and names the servers of each answer in header fields.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from serve_eval.launchers._fleet import session
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._fleet.session import serve_commands
from serve_eval.launchers._process.server_process import check_installed
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.servers import gpus_of_a_job, size_on_one_node
from serve_eval.launchers._vllm import deployment
from serve_eval.launchers._vllm.deployment import (
    VllmDisaggregatedOptions,
    build_servers,
    list_parts,
)
from serve_eval.schema import Endpoint, JobSize, LaunchContext

NAME = "vllm_disaggregated"
FIRST_SIDE_PORT = 5600
"""First port that a dry run shows for NIXL, vLLM's own default."""
SHOWN_TAG = "kv_cache"


def commands(context: LaunchContext, options: VllmDisaggregatedOptions) -> list[list[str]]:
    """Return the command lines, with their environments, that `launch` would start."""
    return [one.line() for one in _servers(context, options)]


def job_size(context: LaunchContext, options: VllmDisaggregatedOptions) -> JobSize:
    """Return the GPUs that a job of one node needs for these servers.

    Raises PlanError as `commands` does.
    """
    parts = list_parts(options)
    _servers(context, replace(options, gpus=gpus_of_a_job(parts, options.gpus)))
    return size_on_one_node(parts)


def expects(context: LaunchContext, options: VllmDisaggregatedOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployment.list_expected(options)


def lint(context: LaunchContext, options: VllmDisaggregatedOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    return deployment.list_disagreements(options)


@asynccontextmanager
async def launch(
    context: LaunchContext, options: VllmDisaggregatedOptions
) -> AsyncIterator[Endpoint]:
    """Start all servers, wait for a completion, and yield the orchestrator's endpoint.

    Each server gets its own block of GPUs, context servers first. `host` and `port` are those of
    the orchestrator; the servers bind loopback. Files of the KV cache are deleted at the end.

    Raises PlanError if options contradict each other or the GPUs are too few, LaunchError if a
    server does not start or ends.
    """
    check_installed(NAME)
    planned = _servers(context, options)  # report wrong options before looking for GPUs
    workers = len(planned) - 1
    ports = free_ports(options.host, options.port, 2 * workers)
    told = deployment.summarise(
        options.connector,
        {kind: {**options.env, **side.env} for kind, side in options.sides.items()},
    )
    # Files of another launch may belong to another model, which their names do not show.
    tag = f"{SHOWN_TAG}-{uuid.uuid4().hex[:12]}"
    model = session.find_model(context, options.model)
    async with session.reserve(options.gpus, planned, context.notify) as reserved:
        context.notify(kv_transfer.describe_transfer(told))
        try:
            async with serve_commands(
                _servers(context, replace(options, gpus=reserved.gpus), ports, tag),
                context,
                launcher=NAME,
                model=deployment.choose_name(context, model),
                limits=options,
                held=reserved.locks,
            ) as endpoint:
                yield endpoint.with_info(kv_transfer=told)
        finally:
            shutil.rmtree(_kv_folder(context, options, tag), ignore_errors=True)


def _kv_folder(context: LaunchContext, options: VllmDisaggregatedOptions, tag: str) -> Path:
    given = options.kv_folder
    return (context.log_dir if given is None else Path(given).expanduser()).absolute() / tag


def _servers(
    context: LaunchContext,
    options: VllmDisaggregatedOptions,
    ports: Sequence[int] | None = None,
    tag: str = SHOWN_TAG,
) -> list[Server]:
    """Return the context servers, the generation servers and the orchestrator.

    `ports` are those of the orchestrator and of the servers, and then those of NIXL.
    """
    parts = list_parts(options)
    workers = len(parts) - 1
    placed = session.place_parts(
        parts,
        gpus=options.gpus,
        host=options.host,
        port=options.port,
        ports=ports[: len(parts)] if ports else None,
    )
    side_ports = ports[len(parts) :] if ports else range(FIRST_SIDE_PORT, FIRST_SIDE_PORT + workers)
    folder = _kv_folder(context, options, tag)
    return build_servers(options, context, placed, side_ports=side_ports, folder=folder)
