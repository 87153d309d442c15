"""Chart a series of runs, and find a slow decline."""

__all__ = ["chart", "history", "noise"]
