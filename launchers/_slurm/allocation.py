"""The allocation that the steps of a launch run in: what SLURM says of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launchers._process.environment import for_helpers
from launchers._slurm.running_steps import ASK_S
from serve_eval.errors import LaunchError, PlanError

USUAL_GPUS = 8
"""GPUs per node where SLURM does not tell."""
GPUS = re.compile(r"\bgpu:(?:[\w.-]+:)?(\d+)")
"""In what SLURM lists as a node's resources, such as `gpu:h200:8(S:0-1)`."""
COMMANDS = ("srun", "squeue", "scancel", "scontrol", "sinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What the steps run in. `job` None: the one that they are started in. Without nodes they are
    not known yet.
    """

    job: str | None = None
    nodes: tuple[str, ...] = ()
    gpus_per_node: int = USUAL_GPUS


def around_us(
    nodes: Sequence[str] | None, gpus_per_node: int | None, environ: Mapping[str, str] = os.environ
) -> Allocation:
    """The allocation that this process runs in, without asking SLURM's controller: for dry runs.
    What is None is as it is there.

    Raises PlanError for nodes that it does not have.
    """
    gpus = gpus_per_node if gpus_per_node is not None else _gpus_told(environ) or USUAL_GPUS
    listed = environ.get("SLURM_JOB_NODELIST")
    if listed is None or shutil.which("scontrol") is None:
        return Allocation(gpus_per_node=gpus)
    return Allocation(nodes=_choose(_expand(listed), nodes), gpus_per_node=gpus)


def find_running(
    nodes: Sequence[str] | None, gpus_per_node: int | None, environ: Mapping[str, str] = os.environ
) -> Allocation | None:
    """The job of SLURM_JOB_ID as SLURM's controller knows it; None without that variable.

    Raises LaunchError when it does not run or has parts of nodes only, PlanError for nodes that it
    does not have.
    """
    if (job := environ.get("SLURM_JOB_ID")) is None:
        return None
    if lacking := [name for name in COMMANDS if shutil.which(name) is None]:
        raise LaunchError(
            f"{', '.join(lacking)}: not there",
            hint="Start it where SLURM's commands are installed.",
        )
    state, _, listed = (
        _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T %N").strip().partition(" ")
    )
    if state != "RUNNING":
        raise LaunchError(
            f"job {job} is {state.lower() or 'not known'}", hint="squeue shows the jobs that run."
        )
    _check_whole(environ)
    gpus = (
        gpus_per_node
        if gpus_per_node is not None
        else _gpus_told(environ) or _gpus_listed(listed) or USUAL_GPUS
    )
    return Allocation(job=job, nodes=_choose(_expand(listed), nodes), gpus_per_node=gpus)


def _gpus_told(environ: Mapping[str, str]) -> int | None:
    told = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(told) if told.isdecimal() else None


def _gpus_listed(nodes: str) -> int | None:
    """The least number of GPUs that one of the nodes has, where SLURM manages GPUs."""
    lines = _ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%G").splitlines()
    counts = [sum(map(int, GPUS.findall(line))) for line in lines]
    return min(counts, default=0) or None


def _check_whole(environ: Mapping[str, str]) -> None:
    """GPUs are counted from 0 on every node: others than the first would be somebody else's."""
    visible = environ.get("CUDA_VISIBLE_DEVICES", "") if "SLURM_GPUS_ON_NODE" in environ else ""
    numbers = visible.split(",") if visible else []
    if all(number.isdecimal() for number in numbers) and numbers != [
        str(i) for i in range(len(numbers))
    ]:
        raise LaunchError(
            f"the job has GPU {visible} of its node, and not all from 0",
            hint="Ask for whole nodes: sbatch --exclusive --gpus-per-node=...",
        )


def _expand(listed: str) -> list[str]:
    return _ask("scontrol", "show", "hostnames", listed).split()


def _choose(there: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The wanted nodes in the order of the allocation, which is that of the tasks of a step."""
    if foreign := [node for node in wanted or () if node not in there]:
        raise PlanError(
            f"launcher.nodes: {', '.join(foreign)}: not in the allocation, which has"
            f" {', '.join(there)}"
        )
    return tuple(node for node in there if wanted is None or node in wanted)


def _ask(*words: str) -> str:
    """What a command of SLURM prints. Raises LaunchError with what it says when it fails."""
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
            f"{words[0]} does not answer: {error}", hint="Does SLURM's controller run?"
        ) from error
    if done.returncode:
        raise LaunchError(
            f"{' '.join(words)}: {done.stderr.strip()}", hint="Does the job still run?"
        )
    return done.stdout
