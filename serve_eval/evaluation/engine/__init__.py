"""Ask every sample once, as many at a time as the endpoint carries."""

__all__ = [
    "circuit_breaker",
    "concurrency",
    "lane",
    "load_session",
    "lockstep",
    "order",
    "progress",
    "request",
    "runner",
    "send",
    "upkeep",
]
