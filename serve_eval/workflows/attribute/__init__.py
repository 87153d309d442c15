"""Ask each worker behind a shared endpoint separately."""

__all__ = [
    "answers",
    "asking",
    "attribute",
    "attributed",
    "document",
    "legs",
]
