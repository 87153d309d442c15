"""Servers as steps of a SLURM allocation: their srun lines, and the script of such a job. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from launchers._process import environment
from launchers._slurm import rank_tasks, step_container
from launchers._slurm.step_container import OURS, SlurmContainer
from launchers._trtllm.command_line import Server
from launchers._trtllm.parts import ORCHESTRATOR
from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting

STRAGGLERS_S = 30
"""How long ranks may go on after the first of them ended."""
ASKS = "URG"
"""The signal by which a shell is asked to end the server below it: SLURM can send it, and who does
not know it ignores it."""
ENDER = Path(__file__).with_name("running_steps.py")


@dataclass(frozen=True, kw_only=True)
class SlurmSteps:
    """How the steps are started. `wrapper` None: as `rank_tasks.wrapper_of` says."""

    mpi: Annotated[str, Setting("The --mpi of srun for the servers.")] = "pmix"
    wrapper: Annotated[
        str | None,
        Setting(
            "What starts the ranks; empty: none. Not set: trtllm-llmapi-launch for servers of"
            " several nodes."
        ),
    ] = None
    container: Annotated[
        SlurmContainer | None, Setting("The image that the steps run in. Not set: none.")
    ] = None
    srun_args: Annotated[list[str], Setting("Further options of the steps.")] = field(
        default_factory=list
    )
    bind: Annotated[
        Literal["name", "all"], Setting("Servers bind the name of their node, or every address.")
    ] = "name"


def step(
    server: Server,
    nodes: Sequence[str],
    ranks: int,
    steps: SlurmSteps,
    *,
    job: str | None,
    tag: str | None,
    asked_on: str,
    log_dir: Path,
    stop_timeout_s: float,
    held: int = 0,
) -> Server:
    """The server as a step of the job (None: of the one that it is started in).

    Its variables are set within the step, since SLURM sets CUDA_VISIBLE_DEVICES for every task
    itself. Under a wrapper, which takes those of SLURM and MPI from the server, it is one task per
    GPU, by the script of `rank_tasks`, for which `held` ports are held. Without one, and for an
    orchestrator, it is a single task from which a shell takes these variables, so that the server
    starts its ranks as it does on a machine without SLURM, on all cores. SLURM's own answer to a
    signal for srun is to kill all tasks, so that a command asks for the end: it signals the step,
    which means each of its processes. MPI's daemon would end the ranks by SIGTERM before the server
    has asked them to end, so that a server with ranks of its own is asked by a signal that only the
    shell above it knows, and all others ignore. For --help all servers ask on one node, in the same
    words.

    A server in a container of docker or podman is a single task as well. SLURM kills all of a step
    at once when its job is cancelled or its srun is killed, and starts none in a job that is over,
    so that the container is bound to its engine's client, by a stdin that ends with the client.
    Where the job goes on, a step of its own removes it besides.

    Raises PlanError for what cannot be started so.
    """
    orchestrator = server.name == ORCHESTRATOR
    contained = step_container.by_engine(steps.container)
    alone = orchestrator or contained
    wrapper = "" if alone else rank_tasks.wrapper_of(steps.wrapper, len(nodes))
    _check(server, wrapper, ranks, len(nodes), steps)
    tasks = max(ranks, 1) if wrapper else 1
    name = server.name if tag is None else f"{server.name}-{tag}"
    spawns = not wrapper and not alone
    if wrapper:
        starting = rank_tasks.words(wrapper, held, log_dir)
    else:
        starting = _above_the_server() if spawns else _alone(contained)
    within = (*_variables(server.env), *starting)
    before = (
        *_srun(name, nodes, tasks, steps.mpi if wrapper else "none", job),
        *(("--label",) if tasks > 1 else ()),
        *(("--cpu-bind=none",) if spawns else ()),
        *step_container.flags(steps.container, log_dir),
        *steps.srun_args,
        *within,
    )
    asked = (
        *_srun(f"help-{tag}", [asked_on], 1, "none", job),
        *step_container.flags(steps.container, log_dir),
        *steps.srun_args,
        *_variables(
            {key: value for key, value in server.env.items() if key in ("PATH", "PYTHONPATH")}
        ),
        *_alone(contained),
    )
    removal = (*_srun(f"end-{name}", nodes[:1], 1, "none", job), *steps.srun_args, *server.at_end)
    return replace(
        server,
        argv=(*before, *server.argv),
        probe=(*asked, *server.probe),
        options_at=len(before) + len(server.argv) - len(server.options),
        env={},
        files={**server.files, **(rank_tasks.files(held, log_dir) if wrapper else {})},
        here=False,
        to_stop=_build_ending(job, name, ASKS if spawns else "TERM", stop_timeout_s),
        at_end=_build_ending(job, name, "TERM", 0, removal if server.at_end else ()),
    )


def _check(server: Server, wrapper: str, ranks: int, nodes: int, steps: SlurmSteps) -> None:
    environment.check_words(steps.srun_args, "launcher.srun_args")
    for argument in steps.srun_args:
        if argument.partition("=")[0] in OURS:
            raise PlanError(
                f"launcher.srun_args: {argument.partition('=')[0]} is written by the launcher"
            )
    if step_container.by_engine(steps.container):
        if steps.wrapper:
            raise PlanError(
                f"launcher.wrapper: {steps.wrapper} starts ranks as tasks of a step, and a"
                " container of docker or podman is one task, within which trtllm-serve starts"
                " them",
                hint=(
                    "Leave wrapper out. Ranks in containers by a wrapper are what engine: pyxis is"
                    " for."
                ),
            )
        if nodes > 1:
            raise PlanError(
                f"launcher.container: {server.name} has {ranks} ranks on {nodes} nodes, and a"
                " container of docker or podman is on one",
                hint="engine: pyxis is for servers of several nodes.",
            )
    elif not wrapper and nodes > 1:
        raise PlanError(
            f"launcher.wrapper: {server.name} has {ranks} ranks on {nodes} nodes, which only a"
            " wrapper can start",
            hint=f"Leave wrapper out, and {rank_tasks.WRAPPER} is used.",
        )


def _srun(
    name: str, nodes: Sequence[str], tasks: int, mpi: str, job: str | None
) -> tuple[str, ...]:
    """--overlap: the steps share the CPUs and the memory of their nodes with each other and with
    the client.
    """
    return (
        "srun",
        *((f"--jobid={job}",) if job else ()),
        f"--job-name={name}",
        "--overlap",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={tasks // len(nodes)}",
        f"--mpi={mpi}",
        "--kill-on-bad-exit=1",
        f"--wait={STRAGGLERS_S}",
    )


def _variables(env: Mapping[str, str | None]) -> tuple[str, ...]:
    removed = [word for name, value in env.items() if value is None for word in ("-u", name)]
    changed = [*removed, *(f"{name}={value}" for name, value in env.items() if value is not None)]
    return ("env", *changed) if changed else ()


def _alone(contained: bool) -> tuple[str, ...]:
    """A shell that takes away by what a server would know itself for a task of SLURM and a rank of
    MPI. An engine's client gets a stdin that neither has something nor ends: a pipe that it holds
    at both ends itself.
    """
    return ("bash", "-c", f'{environment.FORGET}; exec "$@"{" 0<> <(:)" * contained}', "bash")


def _above_the_server() -> tuple[str, ...]:
    """Return the same for a shell that stays above the server, to ask it alone to end.

    The shell waits for the server, also after a signal for all, and ends with its exit code. It
    ignores SIGTERM: a bash whose `wait` a trap interrupts while the server dies of the same signal
    forgets the exit code and ends with 255. It does so only once the server is there, which would
    inherit that.
    """
    asks = f'trap "kill \\$!" {ASKS}'
    waits = 'trap "" TERM; while kill -0 $!; do wait $!; done 2> /dev/null; wait $!'
    return ("bash", "-c", f'{environment.FORGET}; {asks}; "$@" & {waits}', "bash")


def _build_ending(
    job: str | None, name: str, signal: str, grace_s: float, then: Sequence[str] = ()
) -> tuple[str, ...]:
    return (
        (sys.executable, "-I", str(ENDER), job, name, signal, f"{grace_s:g}", *then) if job else ()
    )


def script(
    nodes: int, gpus_per_node: int, sbatch_args: Sequence[str], placement: Sequence[str]
) -> str:
    """A job script for this plan, for sbatch."""
    options = [
        f"--nodes={nodes}",
        f"--ntasks-per-node={gpus_per_node}",
        "--exclusive",
        f"--gpus-per-node={gpus_per_node}",
        *sbatch_args,
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            *(f"# {line}" for line in placement),
            (
                "# Without --gpus-per-node where SLURM manages no GPUs; account, partition, time:"
                " launcher.sbatch_args."
            ),
            "# After a time limit or scancel, submit it again: answers that were had are kept.",
            "exec serve-eval run plan.yaml",
            "",
        ]
    )
