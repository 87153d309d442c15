"""Provide an endpoint and find out what serves it."""

__all__ = [
    "deployment",
    "hang_detector",
    "launch",
]
