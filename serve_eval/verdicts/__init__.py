"""Decide the verdict of a task from its result and its reference."""

__all__ = [
    "below_reference",
    "exit_code",
    "pairing",
    "reference_samples",
    "references",
    "rules",
    "validity",
]
