"""Context and generation servers of vLLM with an orchestrator: options and servers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from serve_eval.errors import PlanError
from serve_eval.launchers._fleet import other_engine
from serve_eval.launchers._logs.causes import VLLM
from serve_eval.launchers._options import Env, FrontDoor, GpuChoice, TimeLimits, Variables
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm.command_line import Place, Server, words
from serve_eval.launchers._trtllm.parts import ORCHESTRATOR, Part
from serve_eval.launchers._vllm import command_line, transfer
from serve_eval.launchers._vllm.command_line import COMMAND, Command, Model, VllmServerOptions
from serve_eval.plugins.setting import Setting
from serve_eval.processes.child_process import build_command
from serve_eval.schema import LaunchContext

EQUAL = ("block_size", "kv_cache_dtype", "dtype", "max_model_len")
"""Options in which both sides must agree. vLLM itself does not notice a different block size, and
then reads other parts of the cache."""
WIDER = ("--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp")
"""Flags that change the number of GPUs of a server."""


@dataclass(frozen=True, kw_only=True)
class VllmSide(VllmServerOptions):
    """Choose the number and the options of the servers of one role.

    An option that is not set has the value for both sides. `env` and `extra_args` add to theirs.
    """

    num_instances: Annotated[int, Setting("Number of these servers.")] = 1
    extra_args: Annotated[
        list[str], Setting("Further words for the command lines of these servers.")
    ] = field(default_factory=list)
    env: Env = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VllmDisaggregatedOptions(VllmServerOptions, Variables, GpuChoice, FrontDoor, TimeLimits):
    """Choose the servers of both roles, their model, and how the KV cache moves.

    `gpus: []` is for a vLLM that computes on CPUs.
    """

    model: Model = None
    command: Command = COMMAND
    context_servers: Annotated[VllmSide, Setting("Servers that process prompts.")] = field(
        default_factory=VllmSide
    )
    generation_servers: Annotated[VllmSide, Setting("Servers that generate answers.")] = field(
        default_factory=VllmSide
    )
    connector: Annotated[
        transfer.Connector,
        Setting("How the KV cache moves: by NIXL, or by files in a folder that both sides share."),
    ] = transfer.NIXL
    connector_config: Annotated[
        dict[str, Any], Setting("Further keys of --kv-transfer-config for both sides.")
    ] = field(default_factory=dict)
    kv_folder: Annotated[
        str | None,
        Setting("Folder in which connector: folder makes its own. Not set: the logs' folder."),
    ] = None
    extra_args: Annotated[
        list[str],
        Setting(
            "Further words for the command lines of all servers. Flags that the launcher sets"
            " are refused."
        ),
    ] = field(default_factory=list)

    @property
    def sides(self) -> dict[str, VllmSide]:
        """The servers by their kind."""
        return {
            "context_servers": self.context_servers,
            "generation_servers": self.generation_servers,
        }


def list_parts(options: VllmDisaggregatedOptions) -> list[Part]:
    """Return context servers, generation servers and the orchestrator, in order.

    Raises PlanError if options contradict each other.
    """
    environment.check(options.env, "launcher.env")
    environment.check_names(options.pass_env, "launcher.pass_env")
    environment.check_words(
        [*words(options.command), *options.extra_args],
        "launcher.command or launcher.extra_args",
    )
    parts = []
    for kind, side in options.sides.items():
        environment.check(side.env, f"launcher.{kind}.env")
        environment.check_words(side.extra_args, f"launcher.{kind}.extra_args")
        if side.num_instances < 1:
            raise PlanError(f"launcher.{kind}.num_instances: must be 1 or more")
        width = 0 if options.gpus == [] else merge_side(options, side).tp or 1
        name = kind.removesuffix("_servers")
        parts += [
            Part(name=f"{name}_{i}", kind=kind, width=width) for i in range(side.num_instances)
        ]
    _check_agreement(options)
    return [*parts, Part(name=ORCHESTRATOR, kind=ORCHESTRATOR, width=0)]


def build_servers(
    options: VllmDisaggregatedOptions,
    context: LaunchContext,
    placed: Sequence[tuple[Part, Place]],
    *,
    side_ports: Sequence[int],
    folder: Path,
) -> list[Server]:
    """Return the servers to start, in the order of the parts.

    `side_ports` has a further port for each server but the orchestrator. `folder` is that of the
    files of the KV cache. Raises PlanError.
    """
    workers = [
        _worker(options, context, part, place, side_port, folder)
        for (part, place), side_port in zip(placed[:-1], side_ports, strict=True)
    ]
    return [*workers, _orchestrator(options, workers, placed[:-1], placed[-1][1])]


def _worker(
    options: VllmDisaggregatedOptions,
    context: LaunchContext,
    part: Part,
    place: Place,
    side_port: int,
    folder: Path,
) -> Server:
    side, where = options.sides[part.kind], f"launcher.{part.kind}"
    model = command_line.find_model(context, options.model)
    argv, ours = command_line.begin(options.command, model, context, place.host, place.port)
    config = transfer.build_config(options.connector, part.kind, folder, options.connector_config)
    flags = {
        **ours,
        **command_line.build_flags(merge_side(options, side), where),
        "--kv-transfer-config": config,
    }
    for extra, at in ((options.extra_args, "launcher"), (side.extra_args, where)):
        command_line.check_extra(extra, {"--model": None, **flags}, at)
        if wider := [one for one in extra if one.partition("=")[0].replace("_", "-") in WIDER]:
            raise PlanError(
                f"{at}.extra_args: {wider[0]}: each server has one rank group, of tp GPUs"
            )
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)} if place.gpus else {}
    return Server(
        name=part.name,
        argv=(*argv, *other_engine.list_words(flags), *options.extra_args, *side.extra_args),
        probe=(),
        place=place,
        env={
            **visible,
            **command_line.ENV,
            **transfer.list_variables(options.connector, side_port),
            **options.env,
            **side.env,
        },
        pass_env=tuple(options.pass_env),
        folders=() if options.connector == transfer.NIXL else (folder,),
        engine=VLLM,
    )


def _orchestrator(
    options: VllmDisaggregatedOptions,
    workers: Sequence[Server],
    placed: Sequence[tuple[Part, Place]],
    place: Place,
) -> Server:
    argv = build_command(
        "serve_eval.launchers._vllm", "--host", place.host, "--port", str(place.port)
    )
    for worker, (part, _) in zip(workers, placed, strict=True):
        argv += [f"--{part.kind.removesuffix('_servers')}", f"{worker.name}={worker.url}"]
    argv += [] if options.connector == transfer.NIXL else ["--no-params"]
    return Server(name=ORCHESTRATOR, argv=tuple(argv), probe=(), place=place, engine=VLLM)


def merge_side(options: VllmDisaggregatedOptions, side: VllmSide) -> VllmSide:
    """Return a side with the options of both sides where it has none of its own."""
    names = [one.name for one in fields(VllmServerOptions) if getattr(side, one.name) is None]
    return replace(side, **{name: getattr(options, name) for name in names})


def _check_agreement(options: VllmDisaggregatedOptions) -> None:
    context, generation = (merge_side(options, side) for side in options.sides.values())
    for name in EQUAL:
        values = getattr(context, name), getattr(generation, name)
        if values[0] != values[1]:
            raise PlanError(
                f"launcher: {name} is {values[0]} on context servers and {values[1]} on generation"
                " servers; a KV cache can only move between equal ones",
                hint=f"Set launcher.{name} for both.",
            )
