"""Read the configuration of a worker, and answer the routes that depend on it alone.

Refusals are the plain Python errors of the real software, which end its process with exit code 1.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from aiohttp import web
from pydantic import BaseModel, ConfigDict, create_model

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin import model
from serve_eval.launchers._standin.config import KEY, ROLE_NUMBERS, ClusterSection
from serve_eval.launchers._standin.options import Flavour, version_of


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Transceiver(BaseModel):
    model_config = ConfigDict(extra="forbid")
    backend: Literal["DEFAULT", "UCX", "NIXL", "MOONCAKE", "MPI"] | None = None
    max_tokens_in_buffer: int | None = None
    kv_transfer_timeout_ms: int | None = None
    kv_transfer_sender_future_timeout_ms: int | None = None
    transceiver_runtime: Literal["CPP", "PYTHON"] | None = None
    kv_cache_bounce_size_mb: int | None = None


class _KvCache(BaseModel):
    model_config = ConfigDict(extra="forbid")
    free_gpu_memory_fraction: float | None = None
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    tokens_per_block: int = 32
    dtype: str = "auto"
    event_buffer_max_size: int = 0
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    host_cache_size: int | None = None
    mamba_ssm_cache_dtype: str | None = None
    onboard_blocks: bool = True
    secondary_offload_min_priority: int | None = None
    max_gpu_total_bytes: int | None = None
    use_uvm: bool = False
    cross_kv_cache_fraction: float | None = None
    attention_dp_events_gather_period_ms: int | None = None


_NUMBERS = """
    tensor_parallel_size pipeline_parallel_size context_parallel_size moe_expert_parallel_size
    moe_tensor_parallel_size moe_cluster_parallel_size gpus_per_node max_batch_size max_num_tokens
    max_seq_len max_input_len max_beam_width num_postprocess_workers perf_metrics_max_requests
    iter_stats_max_iterations request_stats_max_iterations stream_interval
    garbage_collection_gen0_threshold batch_wait_timeout_iters max_stats_len
"""
_FLAGS = """
    disable_overlap_scheduler enable_chunked_prefill gather_generation_logits return_perf_metrics
    enable_iter_perf_stats enable_iter_req_stats print_iter_log enable_attention_dp
    enable_lm_head_tp_in_adp trust_remote_code skip_tokenizer_init enable_autotuner
    enable_layerwise_nvtx_marker enable_min_latency force_dynamic_quantization use_torch_sampler
    mm_encoder_only fail_fast_on_attention_window_too_large normalize_log_probs enable_lora
"""
_TEXTS = """
    model backend tokenizer tokenizer_mode dtype revision tokenizer_revision attn_backend
    moe_backend load_format sampler_type guided_decoding_backend reasoning_parser tool_parser
    otlp_traces_endpoint checkpoint_format allreduce_strategy orchestrator_type checkpoint_loader
    custom_tokenizer
"""
_SECTIONS = """
    cuda_graph_config speculative_config moe_config attention_dp_config scheduler_config
    quant_config build_config lora_config peft_cache_config torch_compile_config kv_connector_config
    nvfp4_gemm_config sparse_attention_config env_overrides cp_config
    extended_runtime_perf_knob_config calib_config disagg_cluster ray_placement_config batching_type
    telemetry_config
"""


def _llm_args() -> type[BaseModel]:
    fields: dict[str, Any] = dict.fromkeys(_NUMBERS.split(), (int | None, None))
    fields |= dict.fromkeys(_FLAGS.split(), (bool | None, None))
    fields |= dict.fromkeys(_TEXTS.split(), (str | None, None))
    fields |= dict.fromkeys(_SECTIONS.split(), (Any, None))
    fields |= {
        "kv_cache_config": (_KvCache | None, None),
        "cache_transceiver_config": (_Transceiver | None, None),
    }
    fields |= {"batch_wait_timeout_ms": (float | None, None)}
    return create_model(
        "TorchLlmArgs", __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields
    )


_LlmArgs = _llm_args()
_FROM_CLI = """
    backend tokenizer max_beam_width max_batch_size max_num_tokens max_seq_len tensor_parallel_size
    pipeline_parallel_size context_parallel_size moe_expert_parallel_size gpus_per_node
    num_postprocess_workers trust_remote_code revision reasoning_parser enable_chunked_prefill
"""


FRONT_ENDS = "num_serve_frontends"
"""Option, and key of the file on main, for the processes that share the port of a worker."""


@dataclass(frozen=True)
class WorkerConfig:
    """The settings of a worker from its command line and file."""

    model: str
    host: str
    port: int
    args: Mapping[str, Any]
    cluster: ClusterSection | None = None
    role: str | None = None
    served_model_name: str | None = None
    tool_parser: str | None = None
    allow_request_chat_template: bool = True
    report_addr: Path | None = None
    front_ends: int = 1
    auth_key: str | None = None

    @property
    def transceiver(self) -> bool:
        return bool((self.args.get("cache_transceiver_config") or {}).get("backend"))


def worker(
    model: str, params: Mapping[str, Any], given: frozenset[str], flavour: Flavour
) -> WorkerConfig:
    """Join a command line with the file that it names.

    In the 1.2 line the file wins; on main the options that were typed win.

    Raises the errors that end the real software: OSError, AssertionError, KeyError, ValueError.
    """
    path = params["extra_llm_api_options"]
    document = (yaml.safe_load(Path(path).read_text()) or {}) if path else {}
    args = {name: params[name] for name in _FROM_CLI.split() if name in params}
    args |= {
        name: value for name, value in document.items() if flavour != "main" or name not in given
    }
    for setting in params.get("config_overrides") or ():
        _override(args, *setting.split("=", 1))
    section = args.pop("disagg_cluster", None)
    auth_key = args.pop(KEY, None) if flavour == "main" else None
    cluster = ClusterSection.of(section) if section else None
    if params["disagg_cluster_uri"]:
        cluster = ClusterSection(cluster_uri=params["disagg_cluster_uri"])
    role = params["server_role"]
    if role is not None:
        if role.upper() not in ROLE_NUMBERS:
            raise (
                KeyError(role.upper())
                if flavour != "main"
                else ValueError(f"Invalid server role: {role}")
            )
        role = role.upper()
    if params["metadata_server_config_file"] or cluster:
        assert role is not None, (
            "server_role is required when metadata_server_cfg or disagg_cluster is provided"
        )
    front_ends = args.pop(FRONT_ENDS, None) if flavour == "main" else None
    if FRONT_ENDS in given or front_ends is None:
        front_ends = params.get(FRONT_ENDS, 1)
    report = params.get("report_addr")
    if report and front_ends > 1:
        raise ValueError(f"--report_addr is not supported with {FRONT_ENDS} > 1")
    if params["port"] == 0:
        assert cluster or report, (
            "Port should be specified unless a disagg cluster config is provided"
        )
    return WorkerConfig(
        model=model,
        host=params["host"],
        port=params["port"],
        args=args,
        cluster=cluster,
        role=role,
        served_model_name=params.get("served_model_name"),
        tool_parser=params.get("tool_parser"),
        allow_request_chat_template=params.get("allow_request_chat_template", True),
        report_addr=Path(report) if report else None,
        front_ends=front_ends,
        auth_key=auth_key,
    )


def check_llm_args(args: Mapping[str, Any]) -> None:
    """Raise pydantic's ValidationError for unknown model arguments.

    It is raised when a model is loaded, after the port is taken.
    """
    _LlmArgs.model_validate(dict(args))


def check_config(document: Mapping[str, Any], flavour: Flavour) -> None:
    """Raise pydantic's ValidationError for what a config file has and a model does not know."""
    own = (KEY, FRONT_ENDS) if flavour == "main" else ()
    check_llm_args({name: value for name, value in document.items() if name not in own})


def _override(args: dict[str, Any], path: str, value: str) -> None:
    *parents, last = path.split(".")
    place = args
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = yaml.safe_load(value)


class PlainRoutes:
    """Answer by the configuration: version, models, tokens."""

    def __init__(self, config: WorkerConfig, flavour: Flavour) -> None:
        self.config, self.flavour = config, flavour

    async def version(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"version": version_of(self.flavour)}))

    async def models(self, request: web.Request) -> web.Response:
        path = Path(self.config.model)
        name = self.config.served_model_name or (
            path.absolute().name if path.is_dir() else self.config.model
        )
        one = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "tensorrt_llm",
        }
        return json_response(200, encode({"object": "list", "data": [one]}))

    async def nothing(self, request: web.Request) -> web.Response:
        return json_response(200, b"[]")

    async def info(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"disaggregated_params": {}}))

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = [model.BOS, *model.encode((await request.json())["prompt"])]
        return json_response(200, encode({"count": len(ids), "tokens": ids}))

    async def openapi(self, request: web.Request) -> web.Response:
        """Return the paths of the application, as FastAPI describes them."""
        found: dict[str, dict[str, Any]] = {}
        for route in request.app.router.routes():
            if route.resource is not None and route.method in ("GET", "POST"):
                said = {"responses": {"200": {"description": "Successful Response"}}}
                found.setdefault(route.resource.canonical, {})[route.method.lower()] = said
        info = {"title": "FastAPI", "version": "0.1.0"}
        return json_response(200, encode({"openapi": "3.1.0", "info": info, "paths": found}))


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def route_metrics(handler: Handler) -> Iterator[tuple[str, Handler]]:
    """Yield the routes of the metrics: a mounted application, whose path ends in a slash."""
    path = "/prometheus/metrics"

    async def redirect(request: web.Request) -> web.StreamResponse:
        where = f"http://{request.host}{path}/"
        return web.Response(status=307, headers={"Location": where})

    yield path, redirect
    yield f"{path}/", handler
