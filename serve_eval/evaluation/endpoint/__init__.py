"""Provide an endpoint and find out what serves it."""

__all__ = [
    "deployment",
    "hang_detector",
    "keeper",
    "launch",
    "server_quirks",
    "system_fingerprints",
]
