"""Run servers together for the length of a block: place, start, watch and end them."""

__all__ = [
    "fleet",
    "free_gpus",
    "loading",
    "log_watch",
    "other_engine",
    "places",
    "readiness",
    "running",
    "session",
]
