"""Measure the accuracy of one endpoint over the number of requests in flight."""

__all__ = [
    "document",
    "judging",
    "passes",
    "story",
]
