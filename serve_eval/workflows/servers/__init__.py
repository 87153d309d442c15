"""Keep servers running for several runs."""

__all__ = [
    "daemon",
    "document",
    "held_servers",
    "reuse",
]
