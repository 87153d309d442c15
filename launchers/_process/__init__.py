"""Start servers as separate processes: their environment, supervisor and reports."""

__all__ = [
    "environment",
    "reported",
    "server_process",
    "supervisor",
]
