"""Write the srun lines that run servers as steps of a SLURM allocation.

TensorRT-LLM's wrapper connects the ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._process import environment
from serve_eval.launchers._slurm import step_container
from serve_eval.launchers._slurm.job_script import check_one_part
from serve_eval.launchers._slurm.step_container import OURS, SlurmContainer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.servers import ORCHESTRATOR
from serve_eval.plugins.setting import Setting

STRAGGLERS_S = 30
"""Seconds that ranks may go on after the first of them ended."""
ASKS = "URG"
"""Signal that asks a shell to end the server below it: SLURM can send it, and processes that do not
know it ignore it."""
ENDER = Path(__file__).with_name("running_steps.py")


@dataclass(frozen=True, kw_only=True)
class SlurmSteps:
    """Choose how steps are started.

    `wrapper` None: as `rank_tasks.wrapper_of` chooses.
    """

    mpi: Annotated[str, Setting("Value of srun's --mpi for the servers.")] = "pmix"
    wrapper: Annotated[
        str | None,
        Setting(
            "Command that starts the ranks; empty: none. Not set: trtllm-llmapi-launch"
            " for servers of several nodes."
        ),
    ] = None
    container: Annotated[
        SlurmContainer | None, Setting("Image in which the steps run. Not set: none.")
    ] = None
    srun_args: Annotated[list[str], Setting("Further srun options for the steps.")] = field(
        default_factory=list
    )
    bind: Annotated[
        Literal["name", "all"],
        Setting("Address that servers bind: the name of their node, or all addresses."),
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
    """Return the server as a step of the job (None: of the one in which it is started).

    Its variables are set within the step, since SLURM sets CUDA_VISIBLE_DEVICES for every task
    itself.

    Under a wrapper, the server is one task per GPU, run by the script of `rank_tasks`, for which
    `held` ports are held. The wrapper removes the variables of SLURM and MPI from the server.
    Without a wrapper, and for an orchestrator, it is a single task in which a shell removes these
    variables, so that the server starts its ranks on all cores as on a machine without SLURM.

    If srun gets a signal, SLURM kills all tasks. To end a server, a command therefore signals the
    step, which means each of its processes. If that were SIGTERM, MPI's daemon would end the ranks
    before the server asks them to end. A server with its own ranks therefore gets a signal that
    only the shell above it knows and all others ignore.

    For --help, all servers ask on one node with the same words.

    A server in a Docker or Podman container is a single task as well. If its job is cancelled or
    its srun is killed, SLURM kills all of a step immediately, and it starts no step in a job that
    is over. The container is therefore tied to its engine's client by a stdin that ends with the
    client. If the job goes on, a separate step also removes the container.

    Raises PlanError if the server cannot be started in this way.
    """
    orchestrator = server.name == ORCHESTRATOR
    contained = step_container.by_engine(steps.container)
    alone = orchestrator or contained
    wrapper = "" if alone else wrapper_of(steps.wrapper, len(nodes))
    _check(server, wrapper, ranks, len(nodes), steps)
    tasks = max(ranks, 1) if wrapper else 1
    name = server.name if tag is None else f"{server.name}-{tag}"
    spawns = not wrapper and not alone
    if wrapper:
        starting = words(wrapper, held, log_dir)
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
        files={**server.files, **(files(held, log_dir) if wrapper else {})},
        here=False,
        to_stop=_build_ending(job, name, ASKS if spawns else "TERM", stop_timeout_s),
        at_end=_build_ending(job, name, "TERM", 0, removal if server.at_end else ()),
    )


def _check(server: Server, wrapper: str, ranks: int, nodes: int, steps: SlurmSteps) -> None:
    environment.check_words(steps.srun_args, "launcher.srun_args")
    check_one_part(steps.srun_args, "launcher.srun_args")
    for argument in steps.srun_args:
        if argument.partition("=")[0] in OURS:
            raise PlanError(
                f"launcher.srun_args: {argument.partition('=')[0]} is set by the launcher"
            )
    if step_container.by_engine(steps.container):
        if steps.wrapper:
            raise PlanError(
                f"launcher.wrapper: {steps.wrapper} starts ranks as tasks of a step,"
                " but a docker or podman container is one task, in which trtllm-serve"
                " starts the ranks",
                hint=(
                    "Leave wrapper out. For ranks in containers with a wrapper, use engine: pyxis."
                ),
            )
        if nodes > 1:
            raise PlanError(
                f"launcher.container: {server.name} has {ranks} ranks on {nodes} nodes,"
                " but a docker or podman container runs on one node",
                hint="For servers of several nodes, use engine: pyxis.",
            )
    elif not wrapper and nodes > 1:
        raise PlanError(
            f"launcher.wrapper: {server.name} has {ranks} ranks on {nodes} nodes, which only a"
            " wrapper can start",
            hint=f"Leave wrapper out to use {WRAPPER}.",
        )


def _srun(
    name: str, nodes: Sequence[str], tasks: int, mpi: str, job: str | None
) -> tuple[str, ...]:
    """Return the beginning of an srun line.

    --overlap: the steps share the CPUs and the memory of their nodes with each other and the
    client.
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
    """Return a shell that removes variables that would make a server a SLURM task or an MPI rank.

    The client of a container engine gets an empty stdin that does not end: a pipe that it holds at
    both ends.
    """
    return ("bash", "-c", f'{environment.FORGET}; exec "$@"{" 0<> <(:)" * contained}', "bash")


def _above_the_server() -> tuple[str, ...]:
    """Return such a shell that stays above the server, so that it alone can be asked to end.

    The shell waits for the server, also after a signal for all, and ends with its exit code. It
    ignores SIGTERM: if a trap interrupts `wait` in bash while the server dies of the same signal,
    bash forgets the exit code and ends with 255. It ignores it only after the server has started,
    which would otherwise inherit that.
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


WRAPPER = "trtllm-llmapi-launch"
"""Command that starts the ranks of a server on several nodes, unless a plan names another."""
SCRIPT = "ranks.sh"
HOLDER = "held_ports.py"
PORTS_EACH = 16
"""Number of ports between those from which two servers of one node search a free one."""
TEXT = """\
#!/bin/bash
# ranks.sh WRAPPER SERVER...: run one task of a step. srun ends with the server and its exit code.
wrapper=$1
shift
set -m # The wrapper gets a process group.
ended() {
  disown -a
  kill -KILL -- "-$1" 2> /dev/null
  # This task may be asked to end later than others.
  [ "$asked" ] || [ "$2" != 143 ] || { sleep 3 & wait $!; kill $!; } 2> /dev/null
  exit $((asked ? 0 : $2)) # If all are asked to end, this task has not failed.
}
if [ "$SLURM_PROCID" != 0 ]; then
  trap asked=1 TERM
  "$wrapper" "$@" &
  set +m
  wait $! 2> /dev/null
  ended $! $?
fi
at=$(mktemp -d /tmp/serve-eval-ranks-XXXXXX) || exit
trap 'rm -rf "$at"' EXIT
export TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=ipc://$at/leader # Older wrappers overwrite it.
# Wrappers split their command at blanks. Older ones do not pass its exit code on, and do not end.
{
  printf '%q ' "$@"
  printf '\\ncode=$?\\necho $code > %s\\nexit $code\\n' "$at/code"
} > "$at/server"
"$wrapper" bash "$at/server" &
set +m
lives=$!
trap 'asked=1 lives=-$!' TERM # A server may take longer to end than its wrapper.
{
  while [ ! -s "$at/code" ] && kill -0 -- "$lives"; do sleep 0.5; done
  if [ -s "$at/code" ]; then code=$(< "$at/code"); else wait $!; code=$?; fi
} 2> /dev/null
ended $! "$code"
"""


HELD = """\
# held_ports.py COUNT COMMAND...: run the command with ports held that its wrapper must not find.
import os, socket, sys

# Older wrappers search a free port from 10012 on, and bind it on 127.0.0.1 much later. A port that
# is held on another address is no longer found, but the wrapper that found it before can bind it.
for port in range(10012, 10012 + int(sys.argv[1])):
    try:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Others may hold it as well.
        one.bind(("127.100.12.1", port))
        os.set_inheritable(one.detach(), True)
    except OSError:
        pass
os.execvp(sys.argv[2], sys.argv[2:])
"""


def wrapper_of(given: str | None, nodes: int) -> str:
    """Return the wrapper of a server: the given one, else none for a server of one node."""
    return given if given is not None else WRAPPER if nodes > 1 else ""


def words(wrapper: str, held: int, log_dir: Path) -> tuple[str, ...]:
    """Return the words before the server's command line in each of its tasks."""
    holder = ("python3", "-I", str(log_dir / HOLDER), str(held)) if held else ()
    return (*holder, "bash", str(log_dir / SCRIPT), wrapper)


def files(held: int, log_dir: Path) -> dict[Path, str]:
    """Return the scripts that these words name."""
    return {log_dir / SCRIPT: TEXT, **({log_dir / HOLDER: HELD} if held else {})}


def count_held_ports(first_nodes: Sequence[int], wrapped: Sequence[bool]) -> Iterator[int]:
    """Yield the number of ports to hold before each server starts.

    The ports are those of the wrapped servers that start earlier on its first node.
    """
    before: dict[int, int] = {}
    for node, one in zip(first_nodes, wrapped, strict=True):
        yield PORTS_EACH * before.get(node, 0)
        before[node] = before.get(node, 0) + one
