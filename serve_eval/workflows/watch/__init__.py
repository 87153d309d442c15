"""A continuous canary: the same questions and checks again and again, and an alarm when they turn
worse.
"""

__all__ = [
    "alarming",
    "asking",
    "beginning",
    "budget",
    "job",
    "judging",
    "metrics",
    "pool",
    "questions",
    "record",
    "story",
    "text",
]
