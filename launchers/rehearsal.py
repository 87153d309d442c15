"""Rehearse a launcher of trtllm-serve: start a stand-in for each of its servers, without a GPU.

`--rehearse` puts this launcher in the place of the one that a plan names. Command lines and config
files are those of the plan, and the stand-in checks them. The servers run on this machine, whatever
the launcher; nothing is loaded, and the answers are made up.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from serve_eval.errors import PlanError
from serve_eval.launchers._fleet import session as fleet_session
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._fleet.session import session
from serve_eval.launchers._options import LOOPBACK, TimeLimits
from serve_eval.launchers._process.server_process import check_installed
from serve_eval.launchers._standin.options import COMMANDS, Flavour
from serve_eval.launchers._trtllm import command_line, deployments
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.command_line import words as split_command
from serve_eval.launchers._trtllm.deployments import (
    Aggregated,
    Deployment,
    Disaggregated,
    choose_deployment,
)
from serve_eval.launchers._trtllm.disaggregated import FLEET
from serve_eval.launchers._trtllm.kv_transfer import Ways
from serve_eval.launchers._trtllm.servers import Part, build_servers, list_parts
from serve_eval.launchers._trtllm.version import adapt_shown
from serve_eval.launchers.container import ContainerOptions
from serve_eval.launchers.slurm import SlurmOptions
from serve_eval.launchers.trtllm import TrtllmOptions
from serve_eval.launchers.trtllm_disaggregated import DisaggregatedOptions
from serve_eval.plugins.setting import Setting
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import REHEARSAL, REHEARSED, Endpoint, LaunchContext

Rehearsed = TrtllmOptions | DisaggregatedOptions | ContainerOptions | SlurmOptions
STRUCTURES: Mapping[str, type[Rehearsed]] = {
    "trtllm": TrtllmOptions,
    "trtllm_disaggregated": DisaggregatedOptions,
    "container": ContainerOptions,
    "slurm": SlurmOptions,
}
"""Launchers that can be rehearsed, with their options."""
RIGHT = 0.75
"""Share of right answers, so that a report has something to show."""
ANSWERS = "rehearsal.answers.jsonl"


@dataclass(frozen=True, kw_only=True)
class RehearsalOptions:
    """Name the launcher to rehearse, with its options."""

    of: Annotated[str, Setting(f"Launcher to rehearse: one of {', '.join(STRUCTURES)}.")] = "trtllm"
    options: Annotated[dict[str, Any], Setting("Options of that launcher.")] = field(
        default_factory=dict
    )


def commands(context: LaunchContext, options: RehearsalOptions) -> list[list[str]]:
    """Return the command lines, with their environments, that `launch` would start.

    Raises PlanError for what the rehearsed launcher refuses, and if packages are missing.
    """
    return [one.line() for one in adapt_shown(_servers(context, _read(context, options)))]


def files(context: LaunchContext, options: RehearsalOptions) -> Mapping[Path, str]:
    """Return the config files that `launch` would write, by path."""
    servers = adapt_shown(_servers(context, _read(context, options)))
    return {path: text for server in servers for path, text in server.files.items()}


def expects(context: LaunchContext, options: RehearsalOptions) -> list[str]:
    """Return the parts of the path that the servers promise."""
    return deployments.list_expected(_deployment(_read(context, options)))


def lint(context: LaunchContext, options: RehearsalOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    return deployments.list_disagreements(_deployment(_read(context, options)), context.model)


@asynccontextmanager
async def launch(context: LaunchContext, options: RehearsalOptions) -> AsyncIterator[Endpoint]:
    """Start a stand-in for each server, wait for a completion, and yield the endpoint.

    Raises PlanError for what the rehearsed launcher or the version refuses, LaunchError if a
    stand-in does not start or ends.
    """
    read = _read(context, options)
    deployment = _deployment(read)
    context.notify(REHEARSED)
    for line in _remarks(options.of, deployment):
        context.notify(f"rehearsal: {line}")
    context = replace(context, log_dir=context.log_dir.absolute())
    if context.write_answer_file is not None:
        context.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        context.write_answer_file(context.log_dir / ANSWERS, lambda task, sample: RIGHT)
    others = len(list_parts(deployment, context)) - 1
    ports, tag = free_ports(LOOPBACK, _port(read), others), uuid.uuid4().hex[:12]
    async with session(
        _servers(context, read, ports, tag),
        context,
        launcher=REHEARSAL,
        model=context.model or str(deployment.model),
        limits=TimeLimits(
            ready_timeout_s=read.ready_timeout_s,
            answer_timeout_s=read.answer_timeout_s,
            stop_timeout_s=read.stop_timeout_s,
        ),
        cluster=isinstance(deployment, Disaggregated) and bool(deployment.discovery),
    ) as endpoint:
        yield endpoint


def _read(context: LaunchContext, options: RehearsalOptions) -> Rehearsed:
    """Return the checked options of the rehearsed launcher.

    Raises PlanError for options that it would refuse in a job with enough GPUs.
    """
    check_installed(REHEARSAL)
    structure = STRUCTURES.get(options.of)
    if structure is None:
        raise PlanError(
            f"launcher.of: {options.of} cannot be rehearsed: there is a stand-in for trtllm-serve"
            " only",
            hint=f"Launchers that can be rehearsed: {', '.join(STRUCTURES)}.",
        )
    launcher = load_launcher(options.of)
    checked = launcher.check_options(options.options, "launcher.options")
    assert launcher.job_size is not None
    launcher.job_size(context, **checked)
    return structure(**checked)  # type: ignore[arg-type] # checked against the same structure


def _deployment(read: Rehearsed) -> Deployment:
    return read if isinstance(read, Aggregated | Disaggregated) else choose_deployment(read)


def _port(read: Rehearsed) -> int | None:
    return read.port


def _remarks(name: str, deployment: Deployment) -> Iterator[str]:
    """Yield what this rehearsal leaves out."""
    if name in ("container", "slurm"):
        yield f"the servers run on this machine, without {name}: images and nodes are not tried"
    program = split_command(deployment.command)[0]
    if name not in ("container", "slurm") and shutil.which(program) is None:
        yield f"the program {program} does not exist here, or is not on PATH: servers need it"
    if isinstance(deployment, Disaggregated) and isinstance(deployment.discovery, str):
        yield f"servers register with the orchestrator, not with {deployment.discovery}"


def _servers(
    context: LaunchContext, read: Rehearsed, ports: list[int] | None = None, tag: str | None = None
) -> list[Server]:
    """Return the servers of the plan, with the stand-in as their program."""
    deployment = _deployment(read)
    words = [sys.executable, "-P", "-m", "serve_eval.launchers._standin"]
    words += ["--flavour", choose_flavour(deployment)]
    if isinstance(deployment, Disaggregated):
        deployment = replace(deployment, command=words, discovery=bool(deployment.discovery))
    else:
        deployment = replace(deployment, command=words)
    parts = list_parts(deployment, context)
    _check_configs(parts, choose_flavour(deployment))
    count = sum(part.width for part in parts)
    placed = fleet_session.place_parts(
        parts, gpus=list(range(count)), host=LOOPBACK, port=_port(read), ports=ports
    )
    built = build_servers(
        deployment, context, placed, ready_timeout_s=read.ready_timeout_s, ways=Ways(), tag=tag
    )
    return [_without_gpus(server, context) for server in built]


def _check_configs(parts: Sequence[Part], flavour: Flavour) -> None:
    """Raise PlanError for keys and values of config files that would end the start of a server."""
    from pydantic import ValidationError

    from serve_eval.launchers._standin.worker_config import check_config

    problems: dict[str, None] = {}
    for part in parts:
        where = "launcher.config" if part.kind == "trtllm" else f"launcher.{part.kind}.config"
        try:
            check_config(part.content, flavour)
        except ValidationError as error:
            for one in error.errors():
                key = ".".join(map(str, one["loc"]))
                unknown = one["type"] == "extra_forbidden"
                said = f"unknown key {key}" if unknown else f"{key}: {one['msg']}"
                problems[f"{where}: {said}"] = None
    if problems:
        raise PlanError(
            list(problems),
            hint="The keys are those of trtllm-serve 1.2; another version may have it.",
        )


def _without_gpus(server: Server, context: LaunchContext) -> Server:
    """Return a server that takes no GPU; its CUDA_VISIBLE_DEVICES still has the plan's numbers."""
    env = {**server.env, "STANDIN_REHEARSAL": "1", "STANDIN_SKILLS": "1", "STANDIN_POLL_S": "0.2"}
    if context.write_answer_file is not None:
        env["STANDIN_ANSWERS"] = str(context.log_dir / ANSWERS)
    return replace(server, place=replace(server.place, gpus=()), env=env)


def choose_flavour(deployment: Deployment) -> Flavour:
    """Return the version whose options are checked: main if an option is new there, else 1.2."""
    sides = list(deployment.sides.values()) if isinstance(deployment, Disaggregated) else []
    given = [deployment] if isinstance(deployment, Aggregated) else sides
    flags = {
        word.partition("=")[0] for one in given for word in one.extra_args if word.startswith("--")
    }
    if any(
        command_line.FRONT_ENDS in command_line.read_config(one.config, "launcher.config")
        for one in given
    ) or (isinstance(deployment, Disaggregated) and FLEET in deployment.orchestrator):
        return "main"
    return "main" if flags - _flags("v12") and flags <= _flags("main") else "v12"


def _flags(flavour: Flavour) -> set[str]:
    options, _, _ = COMMANDS["serve"]
    return {
        flag
        for option in options
        if flavour in option.flavours
        for flag in option.flags.replace("/", " ").split()
    }
