"""Score the answers of a run again, without asking anything."""

__all__ = [
    "document",
    "rescore",
    "rescored_run",
]
