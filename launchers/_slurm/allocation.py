"""Ask SLURM about the allocation of a launch, and assign its nodes and GPUs to the servers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from serve_eval.errors import LaunchError, PlanError
from serve_eval.frozen import freeze
from serve_eval.launchers._process.environment import for_helpers
from serve_eval.launchers._slurm.job_script import NO_HETEROGENEOUS
from serve_eval.launchers._slurm.running_steps import ASK_S
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.servers import Part

USUAL_GPUS = 8
"""GPUs per node if SLURM does not report a number."""
GPUS = re.compile(r"\bgpu:(?:[\w.-]+:)?(\d+)")
"""Matches the GPUs in SLURM's list of a node's resources, such as `gpu:h200:8(S:0-1)`."""
ONE_KIND = "Submit a job of one kind of node, with sbatch --nodes=N."
COMMANDS = ("srun", "squeue", "scancel", "scontrol", "sinfo")


@freeze
class Allocation:
    """The allocation in which the steps run.

    `job` is None if it is the one in which they are started. `nodes` is empty if they are not known
    yet.
    """

    job: str | None = None
    nodes: tuple[str, ...] = ()
    gpus_per_node: int = USUAL_GPUS


def around_us(
    nodes: Sequence[str] | None, gpus_per_node: int | None, environ: Mapping[str, str] = os.environ
) -> Allocation:
    """Return the allocation of this process without asking SLURM's controller, for dry runs.

    Arguments that are None are taken from the allocation. Raises PlanError for nodes that it does
    not have.
    """
    gpus = gpus_per_node if gpus_per_node is not None else _gpus_told(environ) or USUAL_GPUS
    listed = environ.get("SLURM_JOB_NODELIST")
    if listed is None or shutil.which("scontrol") is None:
        return Allocation(gpus_per_node=gpus)
    return Allocation(nodes=_choose(_expand(listed), nodes), gpus_per_node=gpus)


def find_running(
    nodes: Sequence[str] | None, gpus_per_node: int | None, environ: Mapping[str, str] = os.environ
) -> Allocation | None:
    """Return the job of SLURM_JOB_ID as SLURM's controller knows it; None without that variable.

    Raises LaunchError if it does not run or has only parts of nodes, PlanError for nodes that it
    does not have.
    """
    if (job := environ.get("SLURM_JOB_ID")) is None:
        return None
    if lacking := [name for name in COMMANDS if shutil.which(name) is None]:
        raise LaunchError(
            f"{', '.join(lacking)}: not on PATH",
            hint="Start it on a machine with SLURM's commands.",
        )
    _check_one_part(environ)
    state, listed = _find_job(job)
    if state != "RUNNING":
        raise LaunchError(
            f"job {job} is {state.lower() or 'not known'}", hint="squeue shows the running jobs."
        )
    _check_whole(environ)
    gpus = (
        gpus_per_node
        if gpus_per_node is not None
        else _gpus_told(environ) or _gpus_listed(listed) or USUAL_GPUS
    )
    return Allocation(job=job, nodes=_choose(_expand(listed), nodes), gpus_per_node=gpus)


def _find_job(job: str) -> tuple[str, str]:
    """Return the state and the nodes of a job, empty if it is not known.

    The id of one task of an array is that of the whole array. With it, squeue lists all tasks, but
    their raw ids (%A) differ. Raises LaunchError for a heterogeneous job.
    """
    listed = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%A %i %T %N")
    for number, shown, state, *nodes in (line.split() for line in listed.splitlines()):
        if "+" in shown:
            raise LaunchError(f"job {job} is heterogeneous: {NO_HETEROGENEOUS}", hint=ONE_KIND)
        if number == job:
            return state, "".join(nodes)
    return "", ""


def _gpus_told(environ: Mapping[str, str]) -> int | None:
    told = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(told) if told.isdecimal() else None


def _gpus_listed(nodes: str) -> int | None:
    """Return the smallest number of GPUs of a node, if SLURM manages GPUs."""
    lines = _ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%G").splitlines()
    return min(map(count_gpus, lines), default=0) or None


def count_gpus(listed: str) -> int:
    """Return the number of GPUs in SLURM's list of a node's resources."""
    return sum(map(int, GPUS.findall(listed)))


def _check_one_part(environ: Mapping[str, str]) -> None:
    """Raise LaunchError in a heterogeneous job, whose parts have nodes of their own."""
    for name in ("SLURM_HET_SIZE", "SLURM_PACK_SIZE"):
        if environ.get(name, "1") != "1":
            raise LaunchError(
                f"the job is heterogeneous, with {environ[name]} parts: {NO_HETEROGENEOUS}",
                hint=ONE_KIND,
            )


def _check_whole(environ: Mapping[str, str]) -> None:
    """Raise LaunchError if the job does not have the first GPUs of its node.

    GPUs are counted from 0 on every node, so others could belong to another job.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "") if "SLURM_GPUS_ON_NODE" in environ else ""
    numbers = visible.split(",") if visible else []
    if all(number.isdecimal() for number in numbers) and numbers != [
        str(i) for i in range(len(numbers))
    ]:
        raise LaunchError(
            f"the job has GPU {visible} of its node, but the GPUs must be numbered from 0",
            hint="Request whole nodes: sbatch --exclusive --gpus-per-node=...",
        )


def _expand(listed: str) -> list[str]:
    return _ask("scontrol", "show", "hostnames", listed).split()


def _choose(there: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the wanted nodes in the order of the allocation, which is that of a step's tasks."""
    if foreign := [node for node in wanted or () if node not in there]:
        raise PlanError(
            f"launcher.nodes: {', '.join(foreign)}: not in the allocation, which has"
            f" {', '.join(there)}"
        )
    return tuple(node for node in there if wanted is None or node in wanted)


def _ask(*words: str) -> str:
    """Return the output of a SLURM command. Raise LaunchError with its message if it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
            env=for_helpers(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            f"{words[0]} does not answer: {error}", hint="Check that SLURM's controller runs."
        ) from error
    if done.returncode:
        raise LaunchError(
            f"{' '.join(words)}: {done.stderr.strip()}", hint="Check that the job still runs."
        )
    return done.stdout


def list_gpus() -> list[int] | None:
    """Return the numbers of GPUs that this cluster manages on a node, by kind of node, ascending.

    None if that is not known. Nodes without GPUs do not count.
    """
    done = _ask_scheduler("sinfo", "--noheader", "--format=%G")
    if done is None or done.returncode:
        return None
    return sorted({count for line in done.stdout.splitlines() if (count := count_gpus(line))})


def try_out(script: Path) -> str:
    """Return what `sbatch --test-only` says of a script, or why it was not asked.

    Raises PlanError with sbatch's words if it refuses the script.
    """
    reached = _ask_scheduler("sinfo", "--noheader", "--format=%P")
    if reached is None:
        return "SLURM's commands are not here, so the script was not checked"
    if reached.returncode:
        return f"SLURM does not answer, so the script was not checked: {_words_of(reached)}"
    defaults = {name: value for name, value in os.environ.items() if name.startswith("SBATCH_")}
    done = _ask_scheduler("sbatch", "--test-only", str(script), more=defaults)
    if done is None:
        return "sbatch is not here, or does not answer, so the script was not checked"
    said = _words_of(done)
    if done.returncode:
        raise PlanError(
            f"sbatch --test-only refuses {script}: {said}",
            hint=(
                "Give what the cluster needs, such as --sbatch-arg=--partition=NAME, and write the"
                " job again."
            ),
        )
    return said


def _words_of(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr + done.stdout).split())


def _ask_scheduler(
    *words: str, more: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a SLURM command, or None if it is missing or does not answer.

    `more` are further variables for it.
    """
    if shutil.which(words[0]) is None:
        return None
    try:
        return subprocess.run(  # noqa: S603
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
            env={**for_helpers(), **more},
        )
    except (OSError, subprocess.SubprocessError):
        return None


FIRST_PORT = 8000
"""Port of the endpoint in a dry run, where a launch draws one; the servers use the next ones."""
ALL = "0.0.0.0"  # noqa: S104 - only where `bind: all` asks for it


@freeze
class Spot:
    """The nodes of a server, by position in the allocation, and its GPUs, the same on each node."""

    nodes: tuple[int, ...]
    gpus: tuple[str, ...]


def spots(parts: Sequence[Part], gpus_per_node: int) -> list[Spot]:
    """Return the spots of the parts, in the order of the parts.

    A server that fits into a node gets GPUs on the first node with enough left. A wider one gets
    whole nodes, with its ranks evenly spread. The orchestrator runs on the first node. Raises
    PlanError if ranks cannot be spread evenly.
    """
    if gpus_per_node < 1:
        raise PlanError(f"launcher.gpus_per_node: is {gpus_per_node}; must be 1 or more")
    used = [0]  # GPUs in use by node
    found = []
    for part in parts:
        count = -(-part.width // gpus_per_node)
        if count > 1:
            if part.width % count:
                raise PlanError(
                    f"launcher: {part.name} has {part.width} ranks, which cannot be"
                    f" spread evenly over {count} nodes with {gpus_per_node} GPUs",
                    hint="Choose tp x pp x cp as a multiple of the number of nodes.",
                )
            nodes = _nodes(used, count, gpus_per_node, gpus_per_node)
            first, width, taken = 0, part.width // count, gpus_per_node
        else:
            nodes = _nodes(used, 1, part.width, gpus_per_node) if part.width else [0]
            first, width, taken = used[nodes[0]], part.width, used[nodes[0]] + part.width
        for node in nodes:
            used[node] = taken
        found.append(
            Spot(nodes=tuple(nodes), gpus=tuple(str(gpu) for gpu in range(first, first + width)))
        )
    return found


def _nodes(used: list[int], count: int, gpus: int, per_node: int) -> list[int]:
    """Return the first nodes with that number of GPUs left; add nodes if they are too few."""
    found = [node for node, taken in enumerate(used) if taken + gpus <= per_node][:count]
    while len(found) < count:
        found.append(len(used))
        used.append(0)
    return found


def node_count(spots: Sequence[Spot]) -> int:
    return 1 + max(node for spot in spots for node in spot.nodes)


def place_parts(
    parts: Sequence[Part],
    spots: Sequence[Spot],
    nodes: Sequence[str],
    *,
    first_port: int,
    bind: str,
) -> list[tuple[Part, Place]]:
    """Return every part with its place.

    The endpoint gets the first port and the servers the next ones, each a different one even on
    another node. Servers bind the name of their node, which they register with service discovery.

    Raises PlanError if the nodes are too few.
    """
    if (needed := node_count(spots)) > len(nodes):
        raise PlanError(
            f"launcher: {needed} nodes are needed, and there are {len(nodes)}: {','.join(nodes)}",
            hint="Use a larger allocation, fewer servers or less parallelism.",
        )
    ports = [*range(first_port + 1, first_port + len(parts)), first_port]
    return [
        (part, Place(host=ALL if bind == "all" else name, port=port, gpus=spot.gpus, address=name))
        for part, spot, port in zip(parts, spots, ports, strict=True)
        for name in [nodes[spot.nodes[0]]]
    ]


def placement(servers: Sequence[Server], spots: Sequence[Spot], nodes: Sequence[str]) -> list[str]:
    """Return a line per node: the servers on it, with their GPUs and ports."""
    lines = []
    for number, node in enumerate(nodes[: node_count(spots)]):
        here = []
        for server, spot in zip(servers, spots, strict=True):
            if number in spot.nodes:
                gpus = f" GPU {','.join(spot.gpus)}" if spot.gpus else ""
                port = (
                    f" port {server.place.port}" if number == spot.nodes[0] else " (further ranks)"
                )
                here.append(f"{server.name}{gpus}{port}")
        lines.append(f"{node}: {'; '.join(here)}")
    return lines


def node_names(nodes: int) -> list[str]:
    """Return placeholder names for nodes if no allocation is known."""
    return [f"node{number}" for number in range(1, nodes + 1)]
