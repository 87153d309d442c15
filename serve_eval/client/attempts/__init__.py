"""Try a request until it is answered or given up: retries, time limits, pace."""

__all__ = [
    "attempt",
    "liveness",
    "outcome",
    "patience",
    "rate",
    "retry",
    "scheme",
    "starting",
    "tries",
]
