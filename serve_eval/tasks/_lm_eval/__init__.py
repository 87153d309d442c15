"""Tasks of lm-evaluation-harness: what their files say, what is loaded of them, and how their
answers are scored.
"""

__all__ = ["documents", "figure", "settings"]
