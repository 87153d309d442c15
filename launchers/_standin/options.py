"""List the options of three generations of trtllm-serve, and build its click group from them.

`old` is the state of November 2025, before --config was added.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import click
from click.core import ParameterSource

from serve_eval.schema import STAND_IN

Flavour = Literal["old", "v12", "main"]
ALL: tuple[Flavour, ...] = ("old", "v12", "main")
BOTH: tuple[Flavour, ...] = ("v12", "main")
OLD: tuple[Flavour, ...] = ("old",)
BEFORE_MAIN: tuple[Flavour, ...] = ("old", "v12")
V12: tuple[Flavour, ...] = ("v12",)
MAIN: tuple[Flavour, ...] = ("main",)
VERSIONS: dict[Flavour, str] = {"old": "1.1.0", "v12": "1.2.1", "main": "1.3.0rc25"}
"""The versions that GET /version reports."""


def version_of(flavour: Flavour) -> str:
    """Return the version to report; that of a rehearsal deceives no client."""
    named = STAND_IN if os.environ.get("STANDIN_REHEARSAL") == "1" else ""
    return VERSIONS[flavour] + named


class ServeOption(NamedTuple):
    """An option of a command line.

    `flags` is in click's form, separated by blanks; `kind` is a type, `flag` or choices; an option
    with `many` may be repeated.
    """

    name: str
    flags: str
    kind: type | str | tuple[str, ...] = str
    default: object = None
    flavours: tuple[Flavour, ...] = ALL
    many: bool = False
    least: int | None = None


_LEVELS = ("internal_error", "error", "warning", "info", "verbose", "debug", "trace")
_V12_BACKENDS, _MAIN_BACKENDS = ("pytorch", "tensorrt", "_autodeploy"), ("pytorch", "_autodeploy")
_V12_REASONING = ("deepseek-r1", "qwen3", "nano-v3")
_MAIN_REASONING = (
    "auto deepseek-r1 deepseek_v4 gemma4 kimi_k2 kimi_k25 kimi_k3 laguna minimax_m2"
    " minimax_m2_append_think minimax_m3 nano-v3 nemotron-v3 poolside_v1 qwen3 qwen3_5"
)
_V12_TOOLS = ("qwen3", "qwen3_coder", "kimi_k2", "deepseek_v3", "deepseek_v31", "deepseek_v32")
_MAIN_TOOLS = (
    "auto",
    *_V12_TOOLS,
    "deepseek_v4",
    "gemma4",
    "glm4",
    "glm47",
    "kimi_k3",
    "minimax_m2",
    "poolside_v1",
)

_TELEMETRY = ServeOption("telemetry", "--telemetry/--no-telemetry", "flag", True, MAIN)
_REPORT = ServeOption("report_addr", "--report_addr", flavours=MAIN)
_LOG_LEVEL = ServeOption("log_level", "--log_level", _LEVELS, "info")

SERVE = (
    ServeOption("tokenizer", "--tokenizer"),
    ServeOption("custom_tokenizer", "--custom_tokenizer", flavours=BOTH),
    ServeOption("post_processor_hook", "--post_processor_hook", flavours=MAIN),
    ServeOption("host", "--host", default="localhost"),
    ServeOption("port", "--port", int, 8000),
    ServeOption("backend", "--backend", _V12_BACKENDS, "pytorch", BEFORE_MAIN),
    ServeOption("backend", "--backend", _MAIN_BACKENDS, "pytorch", MAIN),
    ServeOption("generation_config", "--generation-config", ("auto", "trtllm"), "trtllm", MAIN),
    ServeOption("custom_module_dirs", "--custom_module_dirs", "path", flavours=BOTH, many=True),
    _LOG_LEVEL,
    ServeOption("max_beam_width", "--max_beam_width", int, 1),
    ServeOption("max_batch_size", "--max_batch_size", int, 2048),
    ServeOption("max_num_tokens", "--max_num_tokens", int, 8192),
    ServeOption("max_seq_len", "--max_seq_len", int),
    ServeOption("tensor_parallel_size", "--tp_size", int, 1, OLD),
    ServeOption("pipeline_parallel_size", "--pp_size", int, 1, OLD),
    ServeOption("moe_expert_parallel_size", "--ep_size", int, None, OLD),
    ServeOption("moe_cluster_parallel_size", "--cluster_size", int, None, OLD),
    ServeOption("tensor_parallel_size", "--tensor_parallel_size --tp_size", int, 1, BOTH),
    ServeOption("pipeline_parallel_size", "--pipeline_parallel_size --pp_size", int, 1, BOTH),
    ServeOption("context_parallel_size", "--context_parallel_size --cp_size", int, 1, BOTH),
    ServeOption(
        "moe_expert_parallel_size", "--moe_expert_parallel_size --ep_size", int, None, BOTH
    ),
    ServeOption(
        "moe_cluster_parallel_size", "--moe_cluster_parallel_size --cluster_size", int, None, BOTH
    ),
    ServeOption("gpus_per_node", "--gpus_per_node", int),
    ServeOption("free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction", float, 0.9, OLD),
    ServeOption(
        "free_gpu_memory_fraction",
        "--free_gpu_memory_fraction --kv_cache_free_gpu_memory_fraction",
        float,
        0.9,
        BOTH,
    ),
    ServeOption("kv_cache_dtype", "--kv_cache_dtype", ("auto", "fp8", "nvfp4"), "auto", MAIN),
    ServeOption("num_postprocess_workers", "--num_postprocess_workers", int, 0),
    ServeOption("num_serve_frontends", "--num_serve_frontends", int, 1, MAIN, least=1),
    ServeOption(
        "num_input_processor_workers", "--num_input_processor_workers", int, 8, MAIN, least=1
    ),
    ServeOption("num_media_load_workers", "--num_media_load_workers", int, 8, MAIN, least=1),
    ServeOption("trust_remote_code", "--trust_remote_code", "flag", False),
    ServeOption("revision", "--revision", flavours=V12),
    ServeOption("revision", "--hf_revision --revision", flavours=MAIN),
    ServeOption("extra_llm_api_options", "--extra_llm_api_options", flavours=OLD),
    ServeOption("extra_llm_api_options", "--config --extra_llm_api_options", flavours=BOTH),
    ServeOption("config_overrides", "--set", flavours=MAIN, many=True),
    ServeOption("reasoning_parser", "--reasoning_parser", _V12_REASONING, None, BEFORE_MAIN),
    ServeOption(
        "reasoning_parser", "--reasoning_parser", tuple(_MAIN_REASONING.split()), None, MAIN
    ),
    ServeOption("tool_parser", "--tool_parser", _V12_TOOLS, None, V12),
    ServeOption("tool_parser", "--tool_parser", _MAIN_TOOLS, None, MAIN),
    ServeOption("metadata_server_config_file", "--metadata_server_config_file"),
    ServeOption("server_role", "--server_role"),
    ServeOption(
        "fail_fast_on_attention_window_too_large",
        "--fail_fast_on_attention_window_too_large",
        "flag",
        False,
        BEFORE_MAIN,
    ),
    ServeOption("otlp_traces_endpoint", "--otlp_traces_endpoint", flavours=BOTH),
    _TELEMETRY,
    ServeOption("disagg_cluster_uri", "--disagg_cluster_uri"),
    ServeOption("enable_chunked_prefill", "--enable_chunked_prefill", "flag", False),
    ServeOption("enable_attention_dp", "--enable_attention_dp", "flag", False, MAIN),
    ServeOption("media_io_kwargs", "--media_io_kwargs"),
    ServeOption("video_pruning_rate", "--video_pruning_rate", float, None, MAIN),
    ServeOption("chat_template", "--chat_template", flavours=BOTH),
    ServeOption(
        "allow_request_chat_template", "--allow_request_chat_template", "flag", False, MAIN
    ),
    ServeOption("middleware", "--middleware", flavours=MAIN, many=True),
    ServeOption("grpc", "--grpc", "flag", False, BOTH),
    ServeOption("grpc_protocol", "--grpc-protocol", ("smg", "openengine"), "smg", MAIN),
    ServeOption("served_model_name", "--served_model_name", flavours=MAIN),
    ServeOption("enable_visual_gen", "--enable_visual_gen", "flag", False, MAIN),
    ServeOption("visual_gen_args", "--visual_gen_args", flavours=MAIN),
    ServeOption("agent_percentage", "--agent_percentage", float, 0.0, MAIN),
    ServeOption("agent_types", "--agent_types", flavours=MAIN),
    _REPORT,
)

DISAGGREGATED = (
    ServeOption("config_file", "-c --config_file", flavours=BEFORE_MAIN),
    ServeOption("config_file", "-c --config --config_file", flavours=MAIN),
    ServeOption("metadata_server_config_file", "-m --metadata_server_config_file"),
    ServeOption("server_start_timeout", "-t --server_start_timeout", int, 180),
    ServeOption("request_timeout", "-r --request_timeout", int, 180),
    ServeOption("log_level", "-l --log_level", _LEVELS, "info"),
    ServeOption(
        "schedule_style", "-s --schedule_style", ("context_first", "generation_first"), None, MAIN
    ),
    ServeOption("metrics_log_interval", "--metrics-log-interval", int, 0),
    _TELEMETRY,
    _REPORT,
)

MPI_WORKER = (
    ServeOption("config_file", "-c --config_file", flavours=BEFORE_MAIN),
    ServeOption("config_file", "-c --config --config_file", flavours=MAIN),
    _LOG_LEVEL,
    _TELEMETRY,
)

MM_EMBEDDING = (
    ServeOption("host", "--host", default="localhost"),
    ServeOption("port", "--port", int, 8000),
    _LOG_LEVEL,
    ServeOption("max_batch_size", "--max_batch_size", int, 2048),
    ServeOption("max_num_tokens", "--max_num_tokens", int, 16384),
    ServeOption("gpus_per_node", "--gpus_per_node", int),
    ServeOption("trust_remote_code", "--trust_remote_code", "flag", False),
    ServeOption("extra_encoder_options", "--extra_encoder_options", flavours=BEFORE_MAIN),
    ServeOption("extra_encoder_options", "--config --extra_encoder_options", flavours=MAIN),
    ServeOption("revision", "--hf_revision", flavours=MAIN),
    ServeOption("free_gpu_memory_fraction", "--free_gpu_memory_fraction", float, 0.9, MAIN),
    ServeOption("tensor_parallel_size", "--tensor_parallel_size --tp_size", int, 1, MAIN),
    ServeOption("metadata_server_config_file", "--metadata_server_config_file"),
    ServeOption(
        "allow_request_chat_template", "--allow_request_chat_template", "flag", False, MAIN
    ),
    _TELEMETRY,
)

_EMBEDDED = (
    "tokenizer",
    "host",
    "port",
    "log_level",
    "max_batch_size",
    "max_num_tokens",
    "trust_remote_code",
)
EMBEDDINGS = (
    *(option for option in SERVE if option.name in _EMBEDDED),
    ServeOption("max_queue_delay", "--max_queue_delay", float, 0.005),
    ServeOption("max_queue_size", "--max_queue_size", int, 2048),
    _TELEMETRY,
)

COMMANDS: dict[str, tuple[tuple[ServeOption, ...], tuple[Flavour, ...], bool]] = {
    "disaggregated": (DISAGGREGATED, ALL, False),
    "disaggregated_mpi_worker": (MPI_WORKER, ALL, False),
    "embeddings": (EMBEDDINGS, MAIN, True),
    "mm_embedding_serve": (MM_EMBEDDING, ALL, True),
    "serve": (SERVE, ALL, True),
}
"""Options of each subcommand, the flavours that have it, and whether it takes a MODEL."""


Run = Callable[[str, dict[str, Any], frozenset[str]], object]
"""Called for a valid command line: subcommand, parameters, names of the given ones."""

_ALIASES = {"trt": "tensorrt"}


class _Backend(click.Choice[str]):
    """A choice that accepts the old short name of a backend if the long one exists."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name = _ALIASES.get(value, value)
        return super().convert(name if name in self.choices else value, param, ctx)


class _Group(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["serve", *args]
        return super().resolve_command(ctx, args)


def group(flavour: Flavour, run: Run) -> click.Group:
    """Return the whole command line.

    With `standalone_mode=False`, a call returns the result of `run`.
    """
    commands = [
        _command(name, options, has_model, flavour, run)
        for name, (options, flavours, has_model) in COMMANDS.items()
        if flavour in flavours
    ]
    return _Group("trtllm-serve", commands={command.name or "": command for command in commands})


def _command(
    name: str, options: tuple[ServeOption, ...], has_model: bool, flavour: Flavour, run: Run
) -> click.Command:
    def callback(**params: Any) -> object:
        context = click.get_current_context()
        given = {
            key
            for key in params
            if context.get_parameter_source(key) is ParameterSource.COMMANDLINE
        }
        return run(name, _plain(params), frozenset(given))

    params: list[click.Parameter] = [
        _parameter(option) for option in options if flavour in option.flavours
    ]
    if has_model:
        params.insert(0, click.Argument(["model"]))
    summary = (
        "Running an OpenAI API compatible server (or its gRPC form)." if name == "serve" else None
    )
    return click.Command(
        name, params=params, callback=callback, help=summary if flavour == "v12" else None
    )


def _parameter(option: ServeOption) -> click.Option:
    kind: Any = option.kind
    if isinstance(kind, tuple):
        kind = _Backend(kind) if option.name == "backend" else click.Choice(kind)
    elif kind == "path":
        kind = click.Path(exists=True)
    elif option.least is not None:
        kind = click.IntRange(min=option.least)
    declared = [option.name, *option.flags.split()]
    if option.kind == "flag":
        return click.Option(declared, is_flag=True, default=option.default)
    return click.Option(declared, type=kind, default=option.default, multiple=option.many)


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in params.items()
    }
