"""Keep servers running for several runs."""

__all__ = [
    "daemon",
    "held_servers",
    "reuse",
]
