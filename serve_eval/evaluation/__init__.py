"""Evaluate an endpoint. Start reading at `evaluate`, which runs all steps."""

__all__ = [
    "build_report",
    "capabilities",
    "earlier_run",
    "early_stop",
    "endpoint",
    "engine",
    "evaluate",
    "judges",
    "passes",
    "prepare",
    "reach",
    "run_session",
    "settle",
    "shared_server",
    "steps",
    "task_report",
    "task_run",
    "trust",
]
