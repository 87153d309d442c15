"""Describe what trtllm-serve serves: command lines, deployments, and options of its versions."""

__all__ = [
    "command_line",
    "containers",
    "deployments",
    "disaggregated",
    "kv_transfer",
    "servers",
    "version",
]
