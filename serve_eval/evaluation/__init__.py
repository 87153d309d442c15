"""Evaluate an endpoint. Start reading at `evaluate`, which runs all steps."""

__all__ = [
    "build_report",
    "capabilities",
    "early_stop",
    "endpoint",
    "engine",
    "evaluate",
    "first_token",
    "judges",
    "passes",
    "prepare",
    "reach",
    "rerun",
    "run_session",
    "shared_server",
    "steps",
    "stopwatch",
    "task_report",
    "task_run",
    "trust",
]
