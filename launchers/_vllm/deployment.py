"""Build context and generation servers of vLLM with an orchestrator, from their options.

By NIXL, the context server returns with its answer where the blocks of the prompt are, and the
generation server fetches them. By a folder, the context server writes a file for each layer, and
the generation server looks for files of the same prompt; the answers do not mention it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._fleet import session
from serve_eval.launchers._logs.causes import VLLM
from serve_eval.launchers._options import (
    LOOPBACK,
    Env,
    FrontDoor,
    GpuChoice,
    Model,
    SharedOption,
    TimeLimits,
    Variables,
    describe_speculation,
    list_differences,
    warn_of_chunks,
)
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm.command_line import Place, Server, value_of, words
from serve_eval.launchers._trtllm.servers import ORCHESTRATOR, Part
from serve_eval.plugins.setting import Setting
from serve_eval.processes.child_process import build_command
from serve_eval.schema import KvTransfer, LaunchContext

Command = Annotated[
    str | list[str],
    Setting(
        "All words before the options. After serve the model is the next word, otherwise the value"
        " of --model."
    ),
]
COMMAND = "vllm serve"
ENV = {"VLLM_NO_USAGE_STATS": "1"}
"""A server for a test reports nothing to vLLM's developers, unless `env` allows it."""
SHORT = {"-tp": "--tensor-parallel-size", "-q": "--quantization", "-sc": "--speculative-config"}
LEAST = {"max_model_len": 1, "tp": 1, "block_size": 1}


@dataclass(frozen=True, kw_only=True)
class VllmServerOptions:
    """Choose how a vLLM server computes. An option that is not set keeps vLLM's default."""

    max_model_len: Annotated[
        int | None, Setting("Maximum tokens of a prompt and its answer (--max-model-len).")
    ] = None
    dtype: Annotated[str | None, Setting("Value of --dtype, such as bfloat16.")] = None
    quantization: Annotated[str | None, Setting("Value of --quantization, such as fp8.")] = None
    tp: Annotated[
        int | None, Setting("Tensor parallelism: the number of GPUs that share every layer.")
    ] = None
    block_size: Annotated[
        int | None, Setting("Tokens in a block of the KV cache (--block-size).")
    ] = None
    kv_cache_dtype: Annotated[
        str | None, Setting("Type of the KV cache (--kv-cache-dtype), such as fp8.")
    ] = None
    prefix_caching: Annotated[
        bool | None, Setting("Use the KV cache of earlier prompts with the same beginning, or not.")
    ] = None
    eager: Annotated[
        bool | None, Setting("Compile nothing (--enforce-eager): a faster start, slower answers.")
    ] = None
    speculative: Annotated[
        dict[str, Any] | None, Setting("Content of --speculative-config, with its method.")
    ] = None
    tool_call_parser: Annotated[
        str | None,
        Setting("Value of --tool-call-parser, such as hermes. Also lets the model choose tools."),
    ] = None


def build_flags(options: VllmServerOptions, where: str) -> dict[str, object]:
    """Return the flags of a server in order; None for those that are not set.

    Raises PlanError for a value out of range; `where` is the place of the options in a plan.
    """
    for name, least in LEAST.items():
        if (value := getattr(options, name)) is not None and value < least:
            raise PlanError(f"{where}.{name}: {value} is less than {least}")
    caching, speculative = options.prefix_caching, options.speculative
    return {
        "--max-model-len": options.max_model_len,
        "--dtype": options.dtype,
        "--quantization": options.quantization,
        "--tensor-parallel-size": options.tp,
        "--block-size": options.block_size,
        "--kv-cache-dtype": options.kv_cache_dtype,
        "--enable-prefix-caching": caching,
        "--no-enable-prefix-caching": caching is False,
        "--enforce-eager": options.eager,
        "--speculative-config": None if speculative is None else json.dumps(speculative),
        "--enable-auto-tool-choice": options.tool_call_parser is not None,
        "--tool-call-parser": options.tool_call_parser,
        # Without it, answers do not report the prompt tokens that came from the prefix cache.
        "--enable-prompt-tokens-details": True,
    }


def begin(
    command: str | Sequence[str], model: str, context: LaunchContext, host: str, port: int
) -> tuple[list[str], dict[str, object]]:
    """Return the words of a command line up to the model, and the flags that every server has."""
    argv, ours = list(words(command)), dict[str, object]()
    if argv[-1] == "serve":
        argv.append(model)
    else:
        ours["--model"] = model
    ours |= {
        "--served-model-name": choose_name(context, model),
        "--host": host,
        "--port": port,
    }
    return argv, ours


def choose_name(context: LaunchContext, model: str) -> str:
    """Return the name of the model in requests."""
    folder = Path(model)
    return context.model or (folder.name if folder.is_absolute() else model)


def check_extra(extra_args: Sequence[str], flags: Mapping[str, object], where: str) -> None:
    """Raise PlanError for a flag of the launcher, in any spelling that vLLM understands."""
    for word in extra_args:
        name = word.partition("=")[0]
        long = SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)
        # --speculative-config.method sets one key of the mapping.
        if long.partition(".")[0] in flags:
            raise PlanError(
                f"{where}.extra_args: {name} is set by the launcher: use the launcher's option"
                " for it"
            )


Connector = Literal["nixl", "folder"]
NIXL: Connector = "nixl"
NAMES: Mapping[Connector, str] = {"nixl": "NixlConnector", "folder": "ExampleConnector"}
"""vLLM's own names for the connectors."""
ROLES = {"context_servers": "kv_producer", "generation_servers": "kv_consumer"}
OURS = ("kv_connector", "kv_role", "kv_connector_extra_config.shared_storage_path")
TLS = "UCX_TLS"


def build_config(connector: Connector, kind: str, folder: Path, more: Mapping[str, Any]) -> str:
    """Return the value of --kv-transfer-config for a kind of server.

    `more` are further keys of the plan. Raises PlanError for keys that the launcher sets.
    """
    extra = more.get("kv_connector_extra_config", {})
    if not isinstance(extra, Mapping):
        raise PlanError("launcher.connector_config.kv_connector_extra_config: must be a mapping")
    given = {*more, *(f"kv_connector_extra_config.{key}" for key in extra)}
    for name in OURS:
        if name in given:
            raise PlanError(
                f"launcher.connector_config: {name} is set by the launcher",
                hint="Set launcher.connector, or launcher.kv_folder.",
            )
    config: dict[str, Any] = {"kv_connector": NAMES[connector], "kv_role": ROLES[kind], **more}
    if connector != NIXL:
        config["kv_connector_extra_config"] = {**extra, "shared_storage_path": str(folder)}
    return json.dumps(config)


def list_variables(connector: Connector, side_port: int) -> dict[str, str]:
    """Return the variables of a server. `side_port` is where NIXL servers meet each other."""
    if connector != NIXL:
        return {}
    return {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": LOOPBACK,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port),
    }


def summarise(connector: Connector, env: Mapping[str, Mapping[str, str | None]]) -> KvTransfer:
    """Return the facts for the report. `env` are the plan's variables for each kind of server."""
    found = {kind: given.get(TLS) for kind, given in env.items()}
    tls = [value for value in dict.fromkeys(found.values()) if value is not None]
    if len(set(found.values())) > 1:
        tls = [
            f"{kind.removesuffix('_servers')} {value or 'not set'}" for kind, value in found.items()
        ]
    return KvTransfer(
        backend=NAMES[connector], nvlink=None, ucx_tls=", ".join(tls) if tls else None
    )


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
        Connector,
        Setting("How the KV cache moves: by NIXL, or by files in a folder that both sides share."),
    ] = NIXL
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
    model = session.find_model(context, options.model)
    argv, ours = begin(options.command, model, context, place.host, place.port)
    config = build_config(options.connector, part.kind, folder, options.connector_config)
    flags = {
        **ours,
        **build_flags(merge_side(options, side), where),
        "--kv-transfer-config": config,
    }
    for extra, at in ((options.extra_args, "launcher"), (side.extra_args, where)):
        check_extra(extra, {"--model": None, **flags}, at)
        if wider := [one for one in extra if one.partition("=")[0].replace("_", "-") in WIDER]:
            raise PlanError(
                f"{at}.extra_args: {wider[0]}: each server has one rank group, of tp GPUs"
            )
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)} if place.gpus else {}
    return Server(
        name=part.name,
        argv=(*argv, *session.list_words(flags), *options.extra_args, *side.extra_args),
        probe=(),
        place=place,
        env={
            **visible,
            **ENV,
            **list_variables(options.connector, side_port),
            **options.env,
            **side.env,
        },
        pass_env=tuple(options.pass_env),
        folders=() if options.connector == NIXL else (folder,),
        engine=VLLM,
    )


def _orchestrator(
    options: VllmDisaggregatedOptions,
    workers: Sequence[Server],
    placed: Sequence[tuple[Part, Place]],
    place: Place,
) -> Server:
    argv = build_command(
        "serve_eval.launchers._vllm.orchestrator", "--host", place.host, "--port", str(place.port)
    )
    for worker, (part, _) in zip(workers, placed, strict=True):
        argv += [f"--{part.kind.removesuffix('_servers')}", f"{worker.name}={worker.url}"]
    argv += [] if options.connector == NIXL else ["--no-params"]
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


FLAGS: Mapping[str, str] = {
    "--chat-template": "the same messages become other tokens, so that their KV caches differ",
    "--tokenizer": "the same text becomes other tokens, so that its KV cache differs",
    "--hf-overrides": "the sides compute another model",
    "--revision": "the sides load another model",
}
"""Flags among further words that should be equal, each with the reason."""
QUANTIZATION = "the sides compute with another precision"


def list_expected(options: VllmServerOptions) -> list[str]:
    """Return what the servers promise: a transfer of the KV cache, and speculation."""
    if not isinstance(options, VllmDisaggregatedOptions):
        return ["speculation"] if options.speculative else []
    generation = merge_side(options, options.generation_servers)
    return ["kv_transfer", *(["speculation"] if generation.speculative else [])]


def list_disagreements(options: VllmDisaggregatedOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    context, generation = (merge_side(options, side) for side in options.sides.values())
    shared = [
        SharedOption(flag, _flag(options, context, flag), _flag(options, generation, flag), why)
        for flag, why in FLAGS.items()
    ]
    shared += [
        SharedOption("quantization", context.quantization, generation.quantization, QUANTIZATION),
        describe_speculation(context.speculative, generation.speculative, "method"),
    ]
    limit = _flag(options, context, "--max-num-batched-tokens")
    words = {_spell(word) for word in (*options.extra_args, *context.extra_args)}
    return [
        *list_differences(shared),
        *warn_of_chunks(
            int(limit) if limit is not None and limit.isdecimal() else None,
            False if "--no-enable-chunked-prefill" in words else None,
            generation.max_model_len,
        ),
    ]


def _flag(options: VllmDisaggregatedOptions, side: VllmSide, flag: str) -> str | None:
    """Return the value of a flag among the further words of a server; the last one counts."""
    words = [
        word if not word.startswith("--") else _spell(word)
        for word in (*options.extra_args, *side.extra_args)
    ]
    return value_of(flag, words)


def _spell(word: str) -> str:
    """Return a flag in vLLM's own spelling, which has hyphens."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
