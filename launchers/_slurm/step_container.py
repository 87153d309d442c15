"""Run servers of SLURM steps in containers, by pyxis, Docker or Podman. Pure.

pyxis is a plug-in of SLURM; Docker and Podman run within the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm import containers, kv_transfer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.deployments import Deployment
from serve_eval.plugins.setting import Setting

OURS = (
    *(
        "-J",
        "--job-name",
        "--jobid",
        "--overlap",
        "--exclusive",
        "-N",
        "--nodes",
        "-w",
        "--nodelist",
        "-n",
        "--ntasks",
    ),
    *(
        "--ntasks-per-node",
        "--mpi",
        "--container-image",
        "--container-mounts",
        "--container-workdir",
        "-o",
        "--output",
    ),
)
"""Options of srun that a plan must not contain: the launcher sets these, or has to read the
output."""
WHERE = "launcher.container"
OF_PYXIS = ("workdir", "args")
OF_IMAGE = tuple(one.name for one in fields(containers.Image))
OF_ENGINES = tuple(name for name in OF_IMAGE if name not in ("image", "mounts"))


@dataclass(frozen=True, kw_only=True)
class SlurmContainer(containers.Image):
    """Choose the image that a step runs in.

    pyxis also mounts the log folder. docker and podman run the image as the launcher `container`
    does, on the network of the host.
    """

    engine: Annotated[
        Literal["pyxis", "docker", "podman"],
        Setting(
            "Program that runs the containers: pyxis, the plug-in of SLURM, or docker or podman"
            " within the step."
        ),
    ] = "pyxis"
    mounts: Annotated[list[str], Setting("Further mounts: SOURCE:TARGET[:FLAGS], full paths.")] = (
        field(default_factory=list)
    )
    workdir: Annotated[str | None, Setting("Folder in which the servers start (pyxis only).")] = (
        None
    )
    args: Annotated[list[str], Setting("Further pyxis options, such as --container-writable.")] = (
        field(default_factory=list)
    )


def by_engine(container: SlurmContainer | None) -> bool:
    """Return True if docker or podman runs the container."""
    return container is not None and container.engine != "pyxis"


def check(container: SlurmContainer, deployment: Deployment, models: Sequence[str]) -> None:
    """Raise PlanError for options that cannot work. `models` are the models to load."""
    usual = SlurmContainer(image=container.image)
    strange = OF_PYXIS if by_engine(container) else OF_ENGINES
    problems = [
        f"{WHERE}.{name}: not an option of {container.engine}"
        for name in strange
        if getattr(container, name) != getattr(usual, name)
    ]
    if problems:
        hint = (
            "workdir and args are options of pyxis, the default engine; docker and"
            " podman have run_args."
        )
        raise PlanError(problems, hint=hint)
    if by_engine(container):
        containers.check(_run(container), deployment, models, WHERE)
    else:
        _check_pyxis(container)


def _check_pyxis(container: SlurmContainer) -> None:
    environment.check_words(container.args, f"{WHERE}.args")
    problems = [] if container.image.strip() else [f"{WHERE}.image: required"]
    problems += [
        f"{WHERE}.mounts: {mount}: give SOURCE:TARGET[:FLAGS]"
        for mount in container.mounts
        if not all(mount.split(":")[:2]) or ":" not in mount or "," in mount
    ]
    problems += [
        f"{WHERE}.args: {argument} is set by the launcher"
        for argument in container.args
        if argument.partition("=")[0] in OURS
    ]
    if problems:
        raise PlanError(problems)


def within(server: Server, container: SlurmContainer | None, tag: str | None) -> Server:
    """Return the server for a step: with docker or podman their run line, else unchanged."""
    if container is None:
        return server
    if not by_engine(container):  # on some sites pyxis maps the user to root
        return (
            replace(server, env={**kv_transfer.for_container(None), **server.env})
            if server.place.gpus
            else server
        )
    return containers.wrap(server, _run(container), tag or "", tied=True)


def flags(container: SlurmContainer | None, log_dir: Path) -> tuple[str, ...]:
    """Return the srun options for pyxis; none for another engine."""
    if container is None or by_engine(container):
        return ()
    mounts = ",".join([f"{log_dir}:{log_dir}", *container.mounts])
    workdir = (f"--container-workdir={container.workdir}",) if container.workdir else ()
    return (
        f"--container-image={container.image}",
        f"--container-mounts={mounts}",
        *workdir,
        *container.args,
    )


def _run(container: SlurmContainer) -> containers.Container:
    engine: containers.Engine = "podman" if container.engine == "podman" else "docker"
    same = {name: getattr(container, name) for name in OF_IMAGE}
    return containers.Container(engine=engine, **same)
