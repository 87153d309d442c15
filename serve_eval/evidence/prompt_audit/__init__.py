"""Audit prompts: compare the tokens that a server reads with those of its model or of another."""

__all__ = [
    "audit",
    "causes",
    "compare",
    "counts",
    "dates",
    "differences",
    "first_token",
    "local",
    "pieces",
    "read",
    "reading",
    "token_ids",
]
