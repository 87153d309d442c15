"""Repeat the same questions, checks and probes, and raise an alarm if they get worse or differ."""

__all__ = [
    "alarming",
    "asking",
    "bets",
    "document",
    "job",
    "judging",
    "probes",
    "record",
    "story",
]
