"""Reading data sets: local files first, the Hugging Face hub only when it is asked for."""

__all__ = [
    "generated",
    "hub",
    "known",
    "local",
    "manifest",
    "passkey_short",
    "source",
    "vault",
    "word_problems",
]
