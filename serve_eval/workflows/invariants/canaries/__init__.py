"""Find codes of one request in replies to others: a leak of data between requests."""

__all__ = [
    "asking",
    "document",
    "prompts",
    "search",
    "story",
]
