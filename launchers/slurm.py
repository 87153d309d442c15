"""Run trtllm-serve, aggregated or disaggregated, as steps of a SLURM allocation.

The allocation has one or more nodes. The launcher works inside the allocation, in its batch script
or as a step. With SLURM_JOB_ID it also works outside, if the nodes can be reached from there.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from serve_eval.errors import LaunchError, PlanError
from serve_eval.frozen import freeze
from serve_eval.launchers._fleet.session import session
from serve_eval.launchers._machine import lock_files
from serve_eval.launchers._options import TimeLimits
from serve_eval.launchers._process.environment import for_helpers
from serve_eval.launchers._slurm import (
    allocation as slurm_allocation,
)
from serve_eval.launchers._slurm import (
    running_steps,
    srun,
    step_container,
)
from serve_eval.launchers._slurm.allocation import USUAL_GPUS, Allocation, around_us, find_running
from serve_eval.launchers._slurm.job_script import job_script
from serve_eval.launchers._slurm.srun import SlurmSteps
from serve_eval.launchers._trtllm import deployments, kv_transfer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.deployments import Deployment, DeploymentChoice, Disaggregated
from serve_eval.launchers._trtllm.kv_transfer import Ways
from serve_eval.launchers._trtllm.servers import build_servers, list_parts, summarise_transfer
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, JobSize, LaunchContext

PORTS = range(11000, 30000)
"""Range of the first port: below the ports of outgoing connections, above those of rank
wrappers."""
SCRIPT = "slurm.sbatch"
STEPS_S = 60.0
"""Seconds that SLURM may still list a step whose processes are gone."""
MARGIN_S = 5.0
"""Seconds that the srun of a step may take to end after the step."""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(DeploymentChoice, SlurmSteps, TimeLimits):
    """Choose what is served, the nodes and steps of the job that serve it, and the time limits."""

    nodes: Annotated[
        list[str] | None, Setting("Names of the nodes to use. Not set: all nodes of the job.")
    ] = None
    gpus_per_node: Annotated[
        int | None, Setting("Number of GPUs per node. Not set: as SLURM reports, else 8.")
    ] = None
    sbatch_args: Annotated[
        list[str], Setting("Further sbatch options for the job script that is shown.")
    ] = field(default_factory=list)
    port: Annotated[
        int | None,
        Setting(
            "Port of the endpoint; the servers use the next ports. Not set: drawn from"
            " 11000 to 29999."
        ),
    ] = None


def commands(context: LaunchContext, options: SlurmOptions) -> list[list[str]]:
    """Return the srun lines that `launch` would start.

    Inside an allocation they name its nodes.
    """
    return [server.line() for server in _preview(context, options).servers]


def files(context: LaunchContext, options: SlurmOptions) -> Mapping[Path, str]:
    """Return the config files that `launch` would write, by path, and a job script.

    The job script lists the placement of the servers.
    """
    plan = _preview(context, options)
    written = {path: text for server in plan.servers for path, text in server.files.items()}
    return {**written, context.log_dir / SCRIPT: _script(plan)}


def job_size(context: LaunchContext, options: SlurmOptions) -> JobSize:
    """Return the nodes and GPUs that a new job needs for these servers, wherever we are now."""
    gpus = options.gpus_per_node
    if gpus is None:
        gpus = min(slurm_allocation.list_gpus() or [USUAL_GPUS])
    return _plan_job(context, options, Allocation(gpus_per_node=gpus)).size


def _script(plan: PlannedJob) -> str:
    return job_script(plan.size, "serve-eval run plan.yaml", sbatch_args=plan.size.sbatch_args)


def expects(context: LaunchContext, options: SlurmOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployments.list_expected(deployments.choose_deployment(options))


def lint(context: LaunchContext, options: SlurmOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    return deployments.list_disagreements(deployments.choose_deployment(options), context.model)


@asynccontextmanager
async def launch(context: LaunchContext, options: SlurmOptions) -> AsyncIterator[Endpoint]:
    """Start every server as a step, wait for a completion, and yield the endpoint.

    The steps run in the job of SLURM_JOB_ID.

    Raises PlanError if options contradict each other or the nodes are too few, LaunchError outside
    an allocation and if a server does not start or ends.
    """
    plan = _preview(context, options)
    allocation = await asyncio.to_thread(find_running, options.nodes, options.gpus_per_node)
    if allocation is None or allocation.job is None:
        count = f"{len(plan.nodes)} node{'s' * (len(plan.nodes) > 1)}"
        raise LaunchError(
            f"not inside a SLURM allocation, and this plan needs {count}; a job"
            f" script:\n{_script(plan)}",
            hint=(
                "Write a job for sbatch with serve-eval run PLAN.yaml --write-job DIR, or give the"
                " same command inside salloc or with SLURM_JOB_ID set."
            ),
        )
    tag, first_port = (
        uuid.uuid4().hex[:8],
        random.choice(PORTS) if options.port is None else options.port,
    )
    plan = _plan_job(context, options, allocation, first_port=first_port, tag=tag)
    context.notify(f"job {allocation.job}, steps named *-{tag}")
    for line in plan.size.notes:
        context.notify(line)
    with lock_files.lock_names(f"node-{node} of job {allocation.job}" for node in plan.nodes):
        try:
            async with session(
                plan.servers,
                context,
                launcher="slurm",
                model=context.model or deployments.name_model(plan.deployment, context),
                limits=replace(options, stop_timeout_s=options.stop_timeout_s + MARGIN_S),
                cluster=isinstance(plan.deployment, Disaggregated)
                and bool(plan.deployment.discovery),
                transfer=summarise_transfer(plan.deployment, context, plan.ways),
            ) as endpoint:
                yield endpoint
        finally:
            await _check_steps(allocation.job, tag, context.notify)


# ------------------------------------------------------------------------------------------------
# plan


@freeze
class PlannedJob:
    """The steps to start, and their nodes."""

    deployment: Deployment
    servers: list[Server]
    nodes: tuple[str, ...]
    ways: Ways | None
    size: JobSize


def _preview(context: LaunchContext, options: SlurmOptions) -> PlannedJob:
    """Plan the job with what is known before a launch."""
    return _plan_job(context, options, around_us(options.nodes, options.gpus_per_node))


def _plan_job(
    context: LaunchContext,
    options: SlurmOptions,
    allocation: Allocation,
    *,
    first_port: int | None = None,
    tag: str | None = None,
) -> PlannedJob:
    """Plan the servers, their nodes and the job script.

    Pure. Unknown nodes get placeholder names.
    """
    deployment = deployments.choose_deployment(options)
    if isinstance(deployment, Disaggregated) and deployment.discovery and options.bind == "all":
        raise PlanError(
            "launcher.bind: with discovery a server registers the address that it"
            " binds, and 0.0.0.0 cannot be reached",
            hint="Leave bind out.",
        )
    if options.container is not None:  # it takes full paths only
        step_container.check(
            options.container, deployment, deployments.list_models(deployment, context)
        )
        context = replace(context, log_dir=context.log_dir.absolute())
    parts = list_parts(deployment, context)
    spots = slurm_allocation.spots(parts, allocation.gpus_per_node)
    count = slurm_allocation.node_count(spots)
    nodes = allocation.nodes or tuple(options.nodes or slurm_allocation.node_names(count))
    placed = slurm_allocation.place_parts(
        parts,
        spots,
        nodes,
        first_port=first_port or options.port or slurm_allocation.FIRST_PORT,
        bind=options.bind,
    )
    servers = build_servers(
        deployment,
        context,
        placed,
        ready_timeout_s=options.ready_timeout_s,
        ways=_ways(deployment) if count == 1 else None,
        tag=tag,
    )
    placement = slurm_allocation.placement(servers, spots, nodes)
    wrapped = [
        part.width > 0 and bool(srun.wrapper_of(options.wrapper, len(spot.nodes)))
        for part, spot in zip(parts, spots, strict=True)
    ]
    held = srun.count_held_ports([spot.nodes[0] for spot in spots], wrapped)
    return PlannedJob(
        deployment=deployment,
        servers=[
            srun.step(
                step_container.within(server, options.container, tag),
                [nodes[i] for i in spot.nodes],
                part.width,
                options,
                job=allocation.job,
                tag=tag,
                asked_on=nodes[0],
                log_dir=context.log_dir,
                stop_timeout_s=options.stop_timeout_s,
                held=ports,
            )
            for server, spot, part, ports in zip(servers, spots, parts, held, strict=True)
        ],
        nodes=nodes[:count],
        ways=_ways(deployment) if count == 1 else None,
        size=JobSize(
            nodes=count,
            gpus_per_node=allocation.gpus_per_node,
            tasks_per_node=allocation.gpus_per_node,
            whole_nodes=True,
            sbatch_args=(
                *((f"--nodelist={','.join(options.nodes[:count])}",) if options.nodes else ()),
                *options.sbatch_args,
            ),
            notes=tuple(placement),
        ),
    )


def _ways(deployment: Deployment) -> Ways:
    """Return the variables from the user, without looking for links between GPUs.

    The GPUs may be on another machine.
    """
    return Ways(own=kv_transfer.list_inherited(deployment.pass_env))


async def _check_steps(job: str, tag: str, notify: Callable[[str], None]) -> None:
    """Cancel our remaining steps, and warn of those that do not end."""
    deadline, cancelled = time.monotonic() + STEPS_S, False
    try:
        while left := {
            name: number
            for name, number in (
                await asyncio.to_thread(running_steps.steps, job, for_helpers())
            ).items()
            if name.endswith(f"-{tag}")
        }:
            if time.monotonic() > deadline:
                notify(
                    f"warning: steps still run: {', '.join(left)}; end them with"
                    f" scancel {' '.join(left.values())}"
                )
                return
            for number in left.values() if not cancelled else ():
                await asyncio.to_thread(partial(running_steps.cancel, number, env=for_helpers()))
            cancelled = True
            await asyncio.sleep(0.5)
    except (OSError, subprocess.SubprocessError) as error:
        notify(f"warning: cannot ask SLURM whether steps still run: {error}")
