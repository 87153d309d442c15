"""Repeat the same questions and checks continuously, and raise an alarm if they get worse."""

__all__ = [
    "alarming",
    "asking",
    "beginning",
    "bets",
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
