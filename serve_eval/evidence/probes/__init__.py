"""Ask probes, texts whose next token is uncertain, and judge how far the answers are away."""

__all__ = [
    "floor",
    "judging",
]
