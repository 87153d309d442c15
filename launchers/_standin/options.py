"""The options of three generations of trtllm-serve, one row per option, in the order of the help.

`old` is the state of November 2025, before --config was added.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from serve_eval.schema import STAND_IN

Flavour = Literal["old", "v12", "main"]
ALL: tuple[Flavour, ...] = ("old", "v12", "main")
BOTH: tuple[Flavour, ...] = ("v12", "main")
OLD: tuple[Flavour, ...] = ("old",)
BEFORE_MAIN: tuple[Flavour, ...] = ("old", "v12")
V12: tuple[Flavour, ...] = ("v12",)
MAIN: tuple[Flavour, ...] = ("main",)
VERSIONS: dict[Flavour, str] = {"old": "1.1.0", "v12": "1.2.1", "main": "1.3.0rc25"}
"""What GET /version reports."""


def version_of(flavour: Flavour) -> str:
    """Return the version to report; that of a rehearsal deceives no client."""
    named = STAND_IN if os.environ.get("STANDIN_REHEARSAL") == "1" else ""
    return VERSIONS[flavour] + named


class Option(NamedTuple):
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

_TELEMETRY = Option("telemetry", "--telemetry/--no-telemetry", "flag", True, MAIN)
_REPORT = Option("report_addr", "--report_addr", flavours=MAIN)
_LOG_LEVEL = Option("log_level", "--log_level", _LEVELS, "info")

SERVE = (
    Option("tokenizer", "--tokenizer"),
    Option("custom_tokenizer", "--custom_tokenizer", flavours=BOTH),
    Option("post_processor_hook", "--post_processor_hook", flavours=MAIN),
    Option("host", "--host", default="localhost"),
    Option("port", "--port", int, 8000),
    Option("backend", "--backend", _V12_BACKENDS, "pytorch", BEFORE_MAIN),
    Option("backend", "--backend", _MAIN_BACKENDS, "pytorch", MAIN),
    Option("generation_config", "--generation-config", ("auto", "trtllm"), "trtllm", MAIN),
    Option("custom_module_dirs", "--custom_module_dirs", "path", flavours=BOTH, many=True),
    _LOG_LEVEL,
    Option("max_beam_width", "--max_beam_width", int, 1),
    Option("max_batch_size", "--max_batch_size", int, 2048),
    Option("max_num_tokens", "--max_num_tokens", int, 8192),
    Option("max_seq_len", "--max_seq_len", int),
    Option("tensor_parallel_size", "--tp_size", int, 1, OLD),
    Option("pipeline_parallel_size", "--pp_size", int, 1, OLD),
    Option("moe_expert_parallel_size", "--ep_size", int, None, OLD),
    Option("moe_cluster_parallel_size", "--cluster_size", int, None, OLD),
    Option("tensor_parallel_size", "--tensor_parallel_size --tp_size", int, 1, BOTH),
    Option("pipeline_parallel_size", "--pipeline_parallel_size --pp_size", int, 1, BOTH),
    Option("context_parallel_size", "--context_parallel_size --cp_size", int, 1, BOTH),
    Option("moe_expert_parallel_size", "--moe_expert_parallel_size --ep_size", int, None, BOTH),
    Option(
        "moe_cluster_parallel_size", "--moe_cluster_parallel_size --cluster_size", int, None, BOTH
    ),
    Option("gpus_per_node", "--gpus_per_node", int),
    Option("free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction", float, 0.9, OLD),
    Option(
        "free_gpu_memory_fraction",
        "--free_gpu_memory_fraction --kv_cache_free_gpu_memory_fraction",
        float,
        0.9,
        BOTH,
    ),
    Option("kv_cache_dtype", "--kv_cache_dtype", ("auto", "fp8", "nvfp4"), "auto", MAIN),
    Option("num_postprocess_workers", "--num_postprocess_workers", int, 0),
    Option("num_serve_frontends", "--num_serve_frontends", int, 1, MAIN, least=1),
    Option("num_input_processor_workers", "--num_input_processor_workers", int, 8, MAIN, least=1),
    Option("num_media_load_workers", "--num_media_load_workers", int, 8, MAIN, least=1),
    Option("trust_remote_code", "--trust_remote_code", "flag", False),
    Option("revision", "--revision", flavours=V12),
    Option("revision", "--hf_revision --revision", flavours=MAIN),
    Option("extra_llm_api_options", "--extra_llm_api_options", flavours=OLD),
    Option("extra_llm_api_options", "--config --extra_llm_api_options", flavours=BOTH),
    Option("config_overrides", "--set", flavours=MAIN, many=True),
    Option("reasoning_parser", "--reasoning_parser", _V12_REASONING, None, BEFORE_MAIN),
    Option("reasoning_parser", "--reasoning_parser", tuple(_MAIN_REASONING.split()), None, MAIN),
    Option("tool_parser", "--tool_parser", _V12_TOOLS, None, V12),
    Option("tool_parser", "--tool_parser", _MAIN_TOOLS, None, MAIN),
    Option("metadata_server_config_file", "--metadata_server_config_file"),
    Option("server_role", "--server_role"),
    Option(
        "fail_fast_on_attention_window_too_large",
        "--fail_fast_on_attention_window_too_large",
        "flag",
        False,
        BEFORE_MAIN,
    ),
    Option("otlp_traces_endpoint", "--otlp_traces_endpoint", flavours=BOTH),
    _TELEMETRY,
    Option("disagg_cluster_uri", "--disagg_cluster_uri"),
    Option("enable_chunked_prefill", "--enable_chunked_prefill", "flag", False),
    Option("enable_attention_dp", "--enable_attention_dp", "flag", False, MAIN),
    Option("media_io_kwargs", "--media_io_kwargs"),
    Option("video_pruning_rate", "--video_pruning_rate", float, None, MAIN),
    Option("chat_template", "--chat_template", flavours=BOTH),
    Option("allow_request_chat_template", "--allow_request_chat_template", "flag", False, MAIN),
    Option("middleware", "--middleware", flavours=MAIN, many=True),
    Option("grpc", "--grpc", "flag", False, BOTH),
    Option("grpc_protocol", "--grpc-protocol", ("smg", "openengine"), "smg", MAIN),
    Option("served_model_name", "--served_model_name", flavours=MAIN),
    Option("enable_visual_gen", "--enable_visual_gen", "flag", False, MAIN),
    Option("visual_gen_args", "--visual_gen_args", flavours=MAIN),
    Option("agent_percentage", "--agent_percentage", float, 0.0, MAIN),
    Option("agent_types", "--agent_types", flavours=MAIN),
    _REPORT,
)

DISAGGREGATED = (
    Option("config_file", "-c --config_file", flavours=BEFORE_MAIN),
    Option("config_file", "-c --config --config_file", flavours=MAIN),
    Option("metadata_server_config_file", "-m --metadata_server_config_file"),
    Option("server_start_timeout", "-t --server_start_timeout", int, 180),
    Option("request_timeout", "-r --request_timeout", int, 180),
    Option("log_level", "-l --log_level", _LEVELS, "info"),
    Option(
        "schedule_style", "-s --schedule_style", ("context_first", "generation_first"), None, MAIN
    ),
    Option("metrics_log_interval", "--metrics-log-interval", int, 0),
    _TELEMETRY,
    _REPORT,
)

MPI_WORKER = (
    Option("config_file", "-c --config_file", flavours=BEFORE_MAIN),
    Option("config_file", "-c --config --config_file", flavours=MAIN),
    _LOG_LEVEL,
    _TELEMETRY,
)

MM_EMBEDDING = (
    Option("host", "--host", default="localhost"),
    Option("port", "--port", int, 8000),
    _LOG_LEVEL,
    Option("max_batch_size", "--max_batch_size", int, 2048),
    Option("max_num_tokens", "--max_num_tokens", int, 16384),
    Option("gpus_per_node", "--gpus_per_node", int),
    Option("trust_remote_code", "--trust_remote_code", "flag", False),
    Option("extra_encoder_options", "--extra_encoder_options", flavours=BEFORE_MAIN),
    Option("extra_encoder_options", "--config --extra_encoder_options", flavours=MAIN),
    Option("revision", "--hf_revision", flavours=MAIN),
    Option("free_gpu_memory_fraction", "--free_gpu_memory_fraction", float, 0.9, MAIN),
    Option("tensor_parallel_size", "--tensor_parallel_size --tp_size", int, 1, MAIN),
    Option("metadata_server_config_file", "--metadata_server_config_file"),
    Option("allow_request_chat_template", "--allow_request_chat_template", "flag", False, MAIN),
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
    Option("max_queue_delay", "--max_queue_delay", float, 0.005),
    Option("max_queue_size", "--max_queue_size", int, 2048),
    _TELEMETRY,
)

COMMANDS: dict[str, tuple[tuple[Option, ...], tuple[Flavour, ...], bool]] = {
    "disaggregated": (DISAGGREGATED, ALL, False),
    "disaggregated_mpi_worker": (MPI_WORKER, ALL, False),
    "embeddings": (EMBEDDINGS, MAIN, True),
    "mm_embedding_serve": (MM_EMBEDDING, ALL, True),
    "serve": (SERVE, ALL, True),
}
"""Options of each subcommand, the flavours that have it, and whether it takes a MODEL."""
