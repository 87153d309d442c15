"""Repeat the same questions, checks and probes, and raise an alarm if they get worse or differ."""

__all__ = [
    "alarming",
    "asking",
    "beginning",
    "bets",
    "budget",
    "job",
    "judging",
    "metrics",
    "numerics",
    "pool",
    "probing",
    "questions",
    "record",
    "reference",
    "story",
    "text",
]
