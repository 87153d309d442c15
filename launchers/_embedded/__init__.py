"""The embedded model and its server."""

__all__ = [
    "command",
    "damage",
    "engine",
    "generation",
    "model",
    "server",
    "tokenizer",
]
