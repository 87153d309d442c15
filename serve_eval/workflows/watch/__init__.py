"""Repeat the same questions, checks and probes, and raise an alarm if they get worse or differ."""

__all__ = [
    "alarming",
    "asking",
    "bets",
    "budget",
    "document",
    "job",
    "judging",
    "pool",
    "probes",
    "record",
    "story",
]
