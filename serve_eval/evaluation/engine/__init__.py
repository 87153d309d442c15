"""Ask every sample once, with as many requests in flight as the endpoint can handle."""

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
    "starvation",
    "upkeep",
]
