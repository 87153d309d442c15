"""The embedded model and its server."""

__all__ = [
    "chat",
    "damage",
    "engine",
    "fields",
    "generation",
    "model",
    "sampling",
    "server",
    "tokenizer",
    "weights",
]
