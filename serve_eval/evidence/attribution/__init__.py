"""Find out which worker of a deployment gave which answers."""

__all__ = [
    "clock_offset",
    "exact_matching",
    "from_run",
    "last_attempts",
    "latency",
    "matching",
    "named_servers",
    "perf_files",
    "prompt_kinds",
    "record",
    "trace",
    "trace_files",
]
