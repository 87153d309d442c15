"""Evaluate an endpoint. Start reading at `evaluate`, which runs all steps."""

__all__ = [
    "build_report",
    "capabilities",
    "early_stop",
    "endpoint",
    "engine",
    "evaluate",
    "judges",
    "passes",
    "prepare",
    "reach",
    "rerun",
    "run_session",
    "session_log",
    "settle",
    "shared_server",
    "steps",
    "task_report",
    "task_run",
    "trust",
]
