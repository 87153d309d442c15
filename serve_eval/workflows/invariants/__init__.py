"""Check one endpoint without expected answers, by changes that must not change the answers."""

__all__ = [
    "arms",
    "cache_use",
    "canaries",
    "check",
    "chunk_lengths",
    "document",
    "filling",
    "folder",
    "pressure",
    "pressure_use",
    "result",
    "salting",
]
