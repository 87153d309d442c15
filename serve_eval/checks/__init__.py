"""Check what an endpoint does with each kind of request, without a data set."""

__all__ = [
    "answer",
    "kinds",
    "row",
    "run",
    "session",
]
