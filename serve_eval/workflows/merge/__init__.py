"""Join the shards of a run, and judge them as one run."""

__all__ = [
    "coverage",
    "merge",
    "shards",
]
