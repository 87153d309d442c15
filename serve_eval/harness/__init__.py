"""lm-evaluation-harness (the optional extra lm-eval) as a source of tasks: its documents, prompts,
filters and metrics.

Nothing here is imported before a task of it is named. What is asked and how is our own engine's.
"""

__all__ = ["answers", "data", "instances", "layout", "library", "log", "measures", "seeds"]
