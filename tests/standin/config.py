"""Configuration files: the orchestrator's, and the part of a worker's that the stand-in knows.

Refusals are the plain Python errors of the real software, which end its process with exit code 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, create_model

from tests.standin.auth import KEY
from tests.standin.etcd import SCHEME
from tests.standin.options import Flavour

Role = Literal["ctx", "gen"]
ROLE_NUMBERS: dict[str, int] = {
    "CONTEXT": 0,
    "GENERATION": 1,
    "MM_ENCODER": 2,
    "VISUAL_GEN": 3,
    "EMBEDDING": 4,
}
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
SECTIONS: dict[str, Role] = {"context_servers": "ctx", "generation_servers": "gen"}


@dataclass(frozen=True)
class Cluster:
    """The section `disagg_cluster`."""

    cluster_uri: str
    cluster_name: str = ""
    minimal_instances: Mapping[str, int] = field(
        default_factory=lambda: {"context_servers": 1, "generation_servers": 1}
    )
    heartbeat_interval_sec: int = 5
    inactive_timeout_sec: int = 10

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Cluster:
        for key in section:
            if key not in cls.__dataclass_fields__:
                raise KeyError(f"Key {key} not found in DisaggClusterConfig")
        section["cluster_uri"]
        return cls(**section)


class Server(NamedTuple):
    """A worker that the orchestrator's file names."""

    type: Role
    hostname: str | None
    port: int | None
    instance_num_ranks: int
    other_args: dict[str, Any]


class Router(NamedTuple):
    type: str
    args: dict[str, Any]
    server_role: int


@dataclass(frozen=True)
class Orchestrator:
    """The file of `trtllm-serve disaggregated`."""

    servers: Sequence[Server]
    ctx_router: Router
    gen_router: Router
    hostname: str = "localhost"
    port: int | str = 8000
    max_retries: int = 1
    perf_metrics_max_requests: int = 0
    return_perf_metrics: bool = False
    perf_metrics_output_dir: str | None = None
    conditional_disagg_config: Mapping[str, Any] | None = None
    otlp_config: Mapping[str, Any] | None = None
    cluster: Cluster | None = None
    auth_key: str | None = None
    node_id: int = 1
    schedule_style: str = "context_first"
    num_workers: int = 1

    def urls(self, role: Role) -> list[str]:
        return [
            f"{server.hostname}:{server.port}" for server in self.servers if server.type == role
        ]


_OWN_KEYS = frozenset({
    "hostname", "port", "max_retries", "perf_metrics_max_requests", "conditional_disagg_config",
    "otlp_config", "disagg_cluster", "node_id", "schedule_style",
})  # fmt: skip
_MAIN_KEYS = frozenset({
    "return_perf_metrics", "perf_metrics_output_dir", "allow_request_chat_template",
    "gen_strip_message_history", "gen_tokids_ctxbytes", "num_workers", "disagg_coordinator_url",
    "server_keep_alive_timeout", "internal_request_auth_key",
})  # fmt: skip
_ROUTER_ARGS = ("max_batch_size", "max_num_tokens")


def orchestrator(document: Mapping[str, Any], flavour: Flavour = "v12") -> Orchestrator:
    """Return the contents of the parsed file.

    Both sections inherit unknown keys at the top, including typing errors.
    """
    known = _OWN_KEYS | (_MAIN_KEYS if flavour == "main" else frozenset())
    own = {key: value for key, value in document.items() if key in known}
    inherited = {k: v for k, v in document.items() if k not in known and k not in SECTIONS}
    node_id = own.get("node_id", 1)
    if not 0 <= node_id < 256:
        raise ValueError(f"node_id must be in range [0, 256), got {node_id}")
    cluster = own.pop("disagg_cluster", None)
    parsed_cluster = Cluster.of(cluster) if cluster is not None else None
    servers: list[Server] = []
    routers = []
    for number, (name, role) in enumerate(SECTIONS.items()):
        section = dict(document.get(name) or {})
        for key, value in inherited.items():
            if section.setdefault(key, value) != value:
                raise ValueError(
                    f"Parameter {key} is specified both in the top-level and in the {name} section,"
                    " but with different values"
                )
        router = dict(section.pop("router", None) or {})
        kind = router.pop("type", "round_robin")
        router.update({key: section[key] for key in _ROUTER_ARGS if key in section})
        routers.append(Router(kind, router, number))
        if parsed_cluster is None:
            servers += _servers(role, section)
    if parsed_cluster is not None:
        check_storage(parsed_cluster.cluster_uri, flavour)
        if flavour == "main":
            _check_scope(parsed_cluster.cluster_uri, own.get("hostname", "localhost"))
    fields = {key: own[key] for key in own if key in Orchestrator.__dataclass_fields__}
    fields["auth_key"] = own.get(KEY)
    return Orchestrator(
        servers=servers,
        ctx_router=routers[0],
        gen_router=routers[1],
        cluster=parsed_cluster,
        **fields,
    )


def check_storage(uri: str, flavour: Flavour) -> None:
    """Raise ValueError for an address of the service discovery that this version does not accept.

    Only main accepts etcd.
    """
    if not uri.startswith(("http", SCHEME) if flavour == "main" else "http"):
        raise ValueError(f"Invalid cluster storage URI: {uri}")


def _check_scope(uri: str, hostname: str) -> None:
    if uri.startswith("http") and not {urlsplit(uri).hostname, hostname.lower()} <= LOOPBACK:
        raise ValueError(
            f"HTTP cluster storage is loopback-only, got {uri} and hostname {hostname}; use etcd://"
        )


def _servers(role: Role, section: dict[str, Any]) -> list[Server]:
    urls = section.pop("urls", None)
    count = section.pop("num_instances", len(urls) if urls else 1)
    ranks = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
        ranks *= section.get(name, 1)
    if urls is None:
        return [Server(role, None, None, ranks, section) for _ in range(count)]
    if len(urls) != count:
        raise ValueError(
            f"Number of urls ({len(urls)}) does not match the number of instances ({count})"
        )
    servers = []
    for url in urls:
        host, port = url.split(":")
        servers.append(Server(role, host, int(port), ranks, section))
    return servers


# The worker's


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


@dataclass(frozen=True)
class Worker:
    """The settings of a worker from its command line and file."""

    model: str
    host: str
    port: int
    args: Mapping[str, Any]
    cluster: Cluster | None = None
    role: str | None = None
    served_model_name: str | None = None
    tool_parser: str | None = None
    allow_request_chat_template: bool = True
    report_addr: Path | None = None
    auth_key: str | None = None

    @property
    def transceiver(self) -> bool:
        return bool((self.args.get("cache_transceiver_config") or {}).get("backend"))


def worker(
    model: str, params: Mapping[str, Any], given: frozenset[str], flavour: Flavour
) -> Worker:
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
    cluster = Cluster.of(section) if section else None
    if params["disagg_cluster_uri"]:
        cluster = Cluster(cluster_uri=params["disagg_cluster_uri"])
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
    report = params.get("report_addr")
    if params["port"] == 0:
        assert cluster or report, (
            "Port should be specified unless a disagg cluster config is provided"
        )
    return Worker(
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
        auth_key=auth_key,
    )


def check_llm_args(args: Mapping[str, Any]) -> None:
    """Raise pydantic's ValidationError for unknown model arguments.

    It is raised when a model is loaded, after the port is taken.
    """
    _LlmArgs.model_validate(dict(args))


def _override(args: dict[str, Any], path: str, value: str) -> None:
    *parents, last = path.split(".")
    place = args
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = yaml.safe_load(value)
