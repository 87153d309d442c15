"""Find codes of one request in replies to others: a leak of data between requests."""

__all__ = [
    "codes",
    "document",
    "story",
]
