"""Run servers together for the length of a block: placed, started, ready, watched, ended."""

__all__ = [
    "fleet",
    "free_gpus",
    "loading",
    "log_watch",
    "other_engine",
    "places",
    "readiness",
    "session",
]
