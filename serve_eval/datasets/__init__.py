"""Read data sets: from local files first, from the Hugging Face hub only on request."""

__all__ = [
    "declared",
    "frames",
    "generated",
    "hub",
    "known",
    "local",
    "manifest",
    "media",
    "passkey_short",
    "small_media",
    "source",
    "vault",
    "word_problems",
]
