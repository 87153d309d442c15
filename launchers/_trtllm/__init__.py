"""Describe what trtllm-serve serves: command lines, deployments, and options of its versions."""

__all__ = [
    "command_line",
    "containers",
    "deployments",
    "disaggregated",
    "flavour",
    "known_flags",
    "kv_transfer",
    "metrics",
    "mpi",
    "parts",
    "router_types",
    "servers",
    "shared_key",
    "version",
]
