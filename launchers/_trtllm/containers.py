"""Run a server in a container: the same command line after `docker run` or `podman run`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._machine import hosts
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.deployments import Aggregated, Deployment
from serve_eval.plugins.setting import Setting

Engine = Literal["docker", "podman"]
HOST = "host"
ULIMITS: dict[str, int | str] = {"memlock": -1, "stack": 67108864}
"""Limits that NVIDIA's quick start of TensorRT-LLM sets for its containers.

For Docker, whose daemon may raise them. Podman without root may not: its runtime refuses memlock=-1
above the user's own limit. So Podman's containers get the limits of the user who starts them."""
OURS = (
    *(
        "--name",
        "--rm",
        "--detach",
        "--interactive",
        "--tty",
        "--init",
        "--gpus",
        "--env",
        "--publish",
        "--publish-all",
    ),
    *("--network", "--net", "--ipc", "--shm-size", "--ulimit", "--user", "--unsetenv"),
)
OURS_SHORT = "deiptuP"
"""Options that `run_args` must not contain: those of the launcher, and those that take the
container away from it."""


TIED = (
    "bash",
    "-c",
    (
        'exec 3<&0; "$@" 3<&- & server=$!; trap "kill -TERM $server" TERM; { cat <&3 > /dev/null;'
        " kill -KILL $$; } & while wait $server; kill -0 $server 2> /dev/null; do :; done; wait"
        " $server"
    ),
    "bash",
)
"""Ends a container when its stdin ends: the shell with which it was started is killed, and all else
with it. The shell passes SIGTERM on, and ends as the server does."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """Choose an image and the flags of the engine that runs it."""

    image: Annotated[str, Setting("Name of the image. Pull it before the run.")]
    mounts: Annotated[
        list[str], Setting("Further mounts: SOURCE:TARGET[:OPTIONS], full paths.")
    ] = field(default_factory=list)
    mount_paths: Annotated[
        bool,
        Setting("Mount full paths in the servers' command lines, read-only, at the same place."),
    ] = True
    ipc: Annotated[str | None, Setting("Value of the engine's --ipc.")] = HOST
    shm_size: Annotated[
        str | None, Setting("Value of the engine's --shm-size. It needs an ipc other than host.")
    ] = None
    ulimits: Annotated[
        dict[str, int | str] | None,
        Setting(
            "Values of the engine's --ulimit, by name. Not set: memlock -1 and stack 67108864 with"
            " docker, your own limits with podman, which cannot raise them without root."
        ),
    ] = None
    user: Annotated[str | None, Setting("User in the container. Not set: the image's.")] = None
    pass_env: Annotated[
        list[str],
        Setting(
            "Names of your environment variables to pass into the container. No command line shows"
            " their values."
        ),
    ] = field(default_factory=lambda: ["HF_TOKEN"])
    run_args: Annotated[list[str], Setting("Further options of the engine's run command.")] = field(
        default_factory=list
    )


@dataclass(frozen=True, kw_only=True)
class Container(Image):
    """Choose the image, the engine that runs it, and the network."""

    engine: Annotated[Engine, Setting("Engine that runs the containers.")] = "docker"
    network: Annotated[
        str,
        Setting(
            "Network of the containers. Networks other than host work for one server only,"
            " whose port is then published."
        ),
    ] = HOST


def check(
    container: Container, deployment: Deployment, models: Sequence[str], where: str = "launcher"
) -> None:
    """Raise PlanError for options that cannot work.

    `models` are the models to load, `where` is the place of these options in a plan.
    """
    problems = [
        *(f"{where}.{problem}" for problem in _option_problems(container, deployment)),
        *(f"{where}.{problem}" for problem in _word_problems(container)),
    ]
    problems += [
        f"{where}: the model {model}: a container accepts full paths only"
        for model in models
        if model.startswith((".", "~"))
    ]
    if problems:
        raise PlanError(problems)
    environment.check_names(container.pass_env, f"{where}.pass_env")
    for name in (*container.pass_env, *deployment.pass_env):
        if name.endswith("*"):
            raise PlanError(
                f"{where}.pass_env: {name}: a container needs the full names of variables"
            )
    environment.check_words(container.run_args, f"{where}.run_args")


def _option_problems(container: Container, deployment: Deployment) -> Iterator[str]:
    """Yield the options that cannot work, alone or together."""
    if not container.image or container.image.startswith("-"):
        yield "image: the name of an image is required"
    if container.network != HOST and not isinstance(deployment, Aggregated):
        yield "network: servers that talk to each other need the network host"
    if container.shm_size is not None and container.ipc == HOST:
        yield "shm_size: with ipc: host the size is that of the host; also set ipc: private"


def _word_problems(container: Container) -> Iterator[str]:
    """Yield the mounts and arguments that an engine would misread, or that are ours."""
    for mount in container.mounts:
        if mount.startswith((".", "~")) or ":/" not in mount:
            yield f"mounts: {mount}: give full paths, SOURCE:TARGET[:OPTIONS]"
    for argument in container.run_args:
        flag = argument.partition("=")[0]
        if flag in OURS or (flag[:1] == "-" and flag[1:2] in [*OURS_SHORT]):
            yield (f"run_args: {flag} is set by the launcher, or takes the container away from it")


def wrap(server: Server, container: Container, launch: str = "", *, tied: bool = False) -> Server:
    """Return the server with a run line of the engine before its command line.

    `launch` makes the container's name unique.

    The container gets the server's environment except CUDA_VISIBLE_DEVICES: inside, it has only the
    GPUs of the engine's device option. A server without GPUs sees all of them, as on a machine,
    because the libraries of the driver, without which TensorRT-LLM cannot be imported, come only
    with GPUs. With its own network, the server binds every address inside, and its port is
    published at the host that it was to bind.

    The engine's client ends with the container and passes signals on. If the client is killed, what
    it leaves behind is removed by name at the end. `tied` means that the container also ends
    without that, since the engine closes its stdin when the client is gone. The client's own stdin
    must then not end earlier, and the image needs bash.

    Raises PlanError for a path that cannot be mounted.
    """
    name = "-".join(part for part in ("serve-eval", launch, server.name) if part)
    as_root = kv_transfer.for_container(container.user) if server.place.gpus else {}
    env = {
        **as_root,
        **{key: value for key, value in server.env.items() if key != "CUDA_VISIBLE_DEVICES"},
    }
    names = tuple(dict.fromkeys((*container.pass_env, *server.pass_env)))
    run = (container.engine, "run", "--rm", "--init", *(("--interactive",) if tied else ()))
    within = TIED if tied else ()
    same = (
        *_list_shared(container),
        *_environment_words(env, names, container),
        *container.run_args,
        container.image,
    )
    published, words = _publish(server, container)
    own = (
        "--name",
        name,
        *_devices(server.place.gpus, container.engine),
        *published,
        *_list_mounts(server, container),
    )
    before = (*run, *own, *same)
    at = len(server.argv) - len(server.options)
    return replace(
        server,
        argv=(*before, *within, *words),
        probe=(*run, *_devices((), container.engine), *same, *within, *server.probe),
        env={
            key: None
            for key, value in env.items()
            if value is None and container.engine == "docker"
        },
        pass_env=names,  # the engine's client reads their values
        at_end=(container.engine, "rm", "-f", name),
        image=container.image,
        options_at=len(before) + len(within) + at,
    )


def _devices(gpus: tuple[str, ...], engine: Engine) -> tuple[str, ...]:
    if engine == "podman":
        return tuple(
            word for gpu in gpus or ("all",) for word in ("--device", f"nvidia.com/gpu={gpu}")
        )
    # Docker reads the value as a line of CSV, in which the list of devices is one field.
    return ("--gpus", f'"device={",".join(gpus)}"' if gpus else "all")


def _list_shared(container: Container) -> tuple[str, ...]:
    """Return the words that all containers of a plan share."""
    found = ["--network", container.network]
    found += ["--ipc", container.ipc] if container.ipc is not None else []
    found += ["--shm-size", container.shm_size] if container.shm_size is not None else []
    found += [word for limit in _list_ulimits(container) for word in ("--ulimit", limit)]
    found += ["--user", container.user] if container.user is not None else []
    return (*found, *(word for mount in container.mounts for word in ("-v", mount)))


def _list_ulimits(container: Container) -> list[str]:
    """Return the values of --ulimit."""
    if container.ulimits is None and container.engine == "podman":
        return [HOST]  # the limits of the user who starts the container
    limits = ULIMITS if container.ulimits is None else container.ulimits
    return [f"{name}={value}" for name, value in limits.items()]


def _environment_words(
    env: dict[str, str | None], names: Sequence[str], container: Container
) -> tuple[str, ...]:
    """Return the options that set or remove variables.

    Docker removes a variable that is named without a value and not set outside; Podman has an
    option for that.
    """
    environment.check(env, "launcher.env")
    remove = "--unsetenv" if container.engine == "podman" else "-e"
    words = [
        (remove, name) if value is None else ("-e", f"{name}={value}")
        for name, value in env.items()
    ]
    words += [("-e", name) for name in names if name not in env]
    return tuple(word for pair in words for word in pair)


def _publish(server: Server, container: Container) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that publish the port, and the command line in the container."""
    if container.network == HOST:
        return (), server.argv
    place, words = server.place, list(server.argv)
    words[words.index("--host") + 1] = "0.0.0.0"  # noqa: S104 - of the container's own network
    return ("-p", f"{hosts.authority(place.host, place.port)}:{place.port}"), tuple(words)


def _list_mounts(server: Server, container: Container) -> tuple[str, ...]:
    """Return mounts for the folders of the server's files and for full paths on its command line.

    The latter are read-only. Raises PlanError for a path with a comma, which separates the parts of
    the option.
    """
    targets = [PurePath(mount.partition(":/")[2].partition(":")[0]) for mount in container.mounts]
    covered = [PurePath("/") / target for target in targets]
    folders = list(dict.fromkeys(str(path.parent) for path in server.files))
    found = [(folder, "") for folder in folders]
    covered += [PurePath(folder) for folder in folders]
    for word in server.options if container.mount_paths else ():
        path = PurePath(word.partition("=")[2] if word.startswith("-") else word)
        if path.is_absolute() and not any(path.is_relative_to(place) for place in covered):
            covered.append(_whole(path))
            found.append((str(_whole(path)), ",readonly=true"))
    for path_text, _ in found:
        if "," in path_text:
            raise PlanError(f"launcher: {path_text} cannot be mounted: its name contains a comma")
    return tuple(
        word
        for path, more in found
        for word in ("--mount", f"type=bind,source={path},target={path}{more}")
    )


def _whole(path: PurePath) -> PurePath:
    """Return the folder to mount for a path.

    A snapshot in a cache of the hub consists of links into the folder of its model, so that folder
    is returned.
    """
    return next((parent for parent in path.parents if parent.name.startswith("models--")), path)
