"""The embedded model and its server."""

__all__ = [
    "chat",
    "command",
    "damage",
    "engine",
    "fields",
    "generation",
    "model",
    "prefix_cache",
    "sampling",
    "server",
    "tokenizer",
    "weights",
]
