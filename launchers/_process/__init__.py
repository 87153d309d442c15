"""Start servers as separate processes: their environment, supervisor and reports."""

__all__ = ["activity", "environment", "own_server", "reported", "server_process", "supervisor"]
