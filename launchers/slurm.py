"""trtllm-serve, single or disaggregated, as steps of a SLURM allocation of one or more nodes.

Works inside the allocation, in its batch script or as a step, and outside with SLURM_JOB_ID where its nodes can be
reached.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from launchers import _meanings
from launchers._fleet.session import session
from launchers._machine import lock_files
from launchers._process.environment import for_helpers
from launchers._slurm import node_placement, rank_tasks, running_steps, srun, step_container
from launchers._slurm.allocation import Allocation, around_us, running
from launchers._slurm.srun import SlurmSteps
from launchers._slurm.step_container import SlurmContainer
from launchers._trtllm import command_line, deployments, kv_transfer
from launchers._trtllm.command_line import Server
from launchers._trtllm.deployments import Aggregated, Deployment, Disaggregated
from launchers._trtllm.kv_transfer import Ways
from launchers._trtllm.parts import list_parts, summarise_transfer
from launchers._trtllm.servers import build_servers
from serve_eval.errors import LaunchError, PlanError
from serve_eval.schema import Endpoint, LaunchContext

PORTS = range(11000, 30000)
"""Where the first port is drawn from: below those that systems give to outgoing connections, and above those that
wrappers of ranks take."""
SCRIPT = "slurm.sbatch"
STEPS_S = 60.0
"""How long SLURM may list a step whose processes are gone."""
MARGIN_S = 5.0
"""By how much longer than a step its srun may take to end."""
MEANINGS = _meanings.SLURM


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """The srun lines that `launch` would start with these options; inside an allocation with its nodes."""
    given = command_line.with_defaults(launch, options)
    return [
        server.line() for server in _planned(context, given, around_us(given["nodes"], given["gpus_per_node"])).servers
    ]


def files(context: LaunchContext, **options: object) -> Mapping[Path, str]:
    """The config files that `launch` would write, by path, and a job script with the placement."""
    given = command_line.with_defaults(launch, options)
    plan = _planned(context, given, around_us(given["nodes"], given["gpus_per_node"]))
    written = {path: text for server in plan.servers for path, text in server.files.items()}
    return {**written, context.log_dir / SCRIPT: plan.script}


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    trtllm: Aggregated | None = None,
    trtllm_disaggregated: Disaggregated | None = None,
    nodes: list[str] | None = None,
    gpus_per_node: int | None = None,
    mpi: str = "pmix",
    wrapper: str | None = None,
    container: SlurmContainer | None = None,
    srun_args: list[str] = [],  # noqa: B006 - shown in lists of options, and never changed
    sbatch_args: list[str] = [],  # noqa: B006
    bind: Literal["name", "all"] = "name",
    port: int | None = None,
    ready_timeout_s: float = 3600.0,
    answer_timeout_s: float = 600.0,
    stop_timeout_s: float = 30.0,
) -> AsyncIterator[Endpoint]:
    """Starts every server as a step, waits for a completion through the front door, and yields its endpoint.

    `trtllm` or `trtllm_disaggregated` says what is served (neither: one server). The steps run in the job of
    SLURM_JOB_ID on `nodes` of it (None: all), which have `gpus_per_node` GPUs (None: as SLURM says, else 8).
    `srun_args` go to srun; `wrapper` starts the ranks of every server as tasks of srun with `mpi` (None:
    trtllm-llmapi-launch those of servers of several nodes, and a server of one node starts its own); `container` is an
    image for pyxis, docker or podman. Servers bind the name of their node, or with `bind: all` every address. `port` is
    the front door's, the servers have the next ones (None: drawn). `sbatch_args` stand in the job script that is shown.
    Time limits in seconds, as for `trtllm`.

    Raises PlanError for options that contradict each other or too few nodes, LaunchError outside of an allocation and
    when a server does not start or ends.
    """
    # First of all, while the parameters are the only locals: these are the options.
    options = {name: value for name, value in locals().items() if name != "context"}
    plan = _planned(context, options, around_us(nodes, gpus_per_node))
    allocation = await asyncio.to_thread(running, nodes, gpus_per_node)
    if allocation is None or allocation.job is None:
        count = f"{len(plan.nodes)} node{'s' * (len(plan.nodes) > 1)}"
        raise LaunchError(
            f"not inside a SLURM allocation, and this plan needs {count}; a job script:\n{plan.script}",
            hint="Submit such a script with sbatch, or give the same command inside salloc, or with SLURM_JOB_ID.",
        )
    tag, first_port = uuid.uuid4().hex[:8], random.choice(PORTS) if port is None else port
    plan = _planned(context, options, allocation, first_port=first_port, tag=tag)
    context.told(f"job {allocation.job}, steps named *-{tag}")
    for line in plan.placement:
        context.told(line)
    with lock_files.locked(f"node-{node} of job {allocation.job}" for node in plan.nodes):
        try:
            async with session(
                plan.servers,
                context,
                launcher="slurm",
                model=context.model or deployments.served(plan.deployment, context),
                ready_timeout_s=ready_timeout_s,
                answer_timeout_s=answer_timeout_s,
                stop_timeout_s=stop_timeout_s + MARGIN_S,
                cluster=isinstance(plan.deployment, Disaggregated) and bool(plan.deployment.discovery),
                transfer=summarise_transfer(plan.deployment, context, plan.ways),
            ) as endpoint:
                yield endpoint
        finally:
            await _check_steps(allocation.job, tag, context.told)


# ------------------------------------------------------------------------------------------------------------ plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """What is to be started where."""

    deployment: Deployment
    servers: list[Server]
    nodes: tuple[str, ...]
    ways: Ways | None
    placement: list[str]
    script: str


def _planned(
    context: LaunchContext,
    options: Mapping[str, Any],
    allocation: Allocation,
    *,
    first_port: int | None = None,
    tag: str | None = None,
) -> PlannedJob:
    """Pure. Where the nodes are not known, others stand for them."""
    deployment, steps = deployments.chosen(options), deployments.picked(SlurmSteps, options)
    if isinstance(deployment, Disaggregated) and deployment.discovery and steps.bind == "all":
        raise PlanError(
            "launcher.bind: with discovery a server registers the address that it binds, and nobody reaches 0.0.0.0",
            hint="Leave bind out.",
        )
    if steps.container is not None:  # which knows full paths only
        step_container.check(steps.container, deployment, deployments.served(deployment, context))
        context = replace(context, log_dir=context.log_dir.absolute())
    parts = list_parts(deployment, context)
    spots = node_placement.spots(parts, allocation.gpus_per_node)
    count = node_placement.node_count(spots)
    nodes = allocation.nodes or tuple(options["nodes"] or node_placement.node_names(count))
    placed = node_placement.placed(
        parts,
        spots,
        nodes,
        first_port=first_port or options["port"] or node_placement.FIRST_PORT,
        bind=steps.bind,
    )
    servers = build_servers(
        deployment,
        context,
        placed,
        ready_timeout_s=options["ready_timeout_s"],
        ways=_ways(deployment) if count == 1 else None,
        tag=tag,
    )
    placement = node_placement.placement(servers, spots, nodes)
    wrapped = [
        part.width > 0 and bool(rank_tasks.wrapper_of(steps.wrapper, len(spot.nodes)))
        for part, spot in zip(parts, spots, strict=True)
    ]
    held = rank_tasks.held([spot.nodes[0] for spot in spots], wrapped)
    return PlannedJob(
        deployment=deployment,
        servers=[
            srun.step(
                step_container.within(server, steps.container, tag),
                [nodes[i] for i in spot.nodes],
                part.width,
                steps,
                job=allocation.job,
                tag=tag,
                asked_on=nodes[0],
                log_dir=context.log_dir,
                stop_timeout_s=options["stop_timeout_s"],
                held=ports,
            )
            for server, spot, part, ports in zip(servers, spots, parts, held, strict=True)
        ],
        nodes=nodes[:count],
        ways=_ways(deployment) if count == 1 else None,
        placement=placement,
        script=srun.script(count, allocation.gpus_per_node, options["sbatch_args"], placement),
    )


def _ways(deployment: Deployment) -> Ways:
    """Links are not looked for: where this runs may be another machine than that of the GPUs."""
    return Ways(own=kv_transfer.inherited(deployment.pass_env))


async def _check_steps(job: str, tag: str, told: Callable[[str], None]) -> None:
    """Cancels what is left of our steps, and tells of those that stay all the same."""
    deadline, cancelled = time.monotonic() + STEPS_S, False
    try:
        while left := {
            name: number
            for name, number in (await asyncio.to_thread(running_steps.steps, job, for_helpers())).items()
            if name.endswith(f"-{tag}")
        }:
            if time.monotonic() > deadline:
                told(f"warning: steps are left: {', '.join(left)}; scancel {' '.join(left.values())} ends them")
                return
            for number in left.values() if not cancelled else ():
                await asyncio.to_thread(partial(running_steps.cancel, number, env=for_helpers()))
            cancelled = True
            await asyncio.sleep(0.5)
    except (OSError, subprocess.SubprocessError) as error:
        told(f"warning: SLURM does not say whether steps are left: {error}")
