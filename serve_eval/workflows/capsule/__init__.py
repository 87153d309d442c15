"""Pack one request of a run so that it can be sent again."""

__all__ = [
    "capsule",
    "packed",
]
