"""Start servers as separate processes: their environment, supervisor and reports."""

__all__ = [
    "environment",
    "server_process",
    "supervisor",
]
