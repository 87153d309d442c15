"""Check one endpoint without expected answers, by changes that must not change the answers."""

__all__ = [
    "arms",
    "cache_use",
    "caching",
    "canaries",
    "check",
    "document",
]
