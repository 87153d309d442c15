"""Show the runs of a folder: an index with trends, and any two runs side by side."""

__all__ = [
    "document",
    "listing",
    "overview",
    "server",
]
