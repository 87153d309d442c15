"""Read, load and score tasks of lm-evaluation-harness."""

__all__ = ["documents", "figure", "settings"]
