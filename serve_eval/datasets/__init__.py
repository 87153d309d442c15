"""Read data sets: from local files first, from the Hugging Face hub only on request."""

__all__ = [
    "generated",
    "local",
    "media",
    "small_media",
    "source",
    "vault",
]
