"""Ask every sample once and account for every answer."""

__all__ = [
    "accumulator",
    "circuit_breaker",
    "concurrency",
    "degradation",
    "degradation_alarm",
    "lane",
    "load_session",
    "lockstep",
    "order",
    "progress",
    "repeats",
    "replay",
    "request",
    "runner",
    "sample_table",
    "scoring",
    "send",
    "stability",
    "task_result",
    "upkeep",
]
