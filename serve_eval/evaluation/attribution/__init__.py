"""Find out which worker of a deployment gave which answers."""

__all__ = [
    "clock_offset",
    "exact_matching",
    "from_run",
    "latency",
    "matching",
    "perf_files",
    "prompt_kinds",
    "record",
    "trace",
    "trace_files",
]
