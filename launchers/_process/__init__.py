"""Start servers as processes of their own: their environment, their supervisor, and what they
report.
"""

__all__ = ["activity", "environment", "own_server", "reported", "server_process", "supervisor"]
