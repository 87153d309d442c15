"""Begin with an endpoint: ask it what it is, and write a starter plan."""

__all__ = [
    "starter_plan",
]
