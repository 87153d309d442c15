"""Audit prompts: compare the tokens that a server reads with those of its model or of another."""

__all__ = [
    "audit",
    "compare",
    "local_tokens",
    "reading",
    "server_tokens",
]
