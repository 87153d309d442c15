"""Collect results of runs and of TensorRT-LLM's test logs, one row per task."""

__all__ = [
    "collect",
    "document",
    "trtllm_log",
]
