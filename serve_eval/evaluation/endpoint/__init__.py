"""Provide an endpoint and find out what serves it."""

__all__ = [
    "companions",
    "deployed_servers",
    "deployment",
    "engine_counters",
    "hang_detector",
    "keeper",
    "launch",
    "server_quirks",
    "system_fingerprints",
]
