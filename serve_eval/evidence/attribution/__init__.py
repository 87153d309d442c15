"""Find out which worker of a deployment gave which answers."""

__all__ = [
    "bad_workers",
    "clock_offset",
    "latency",
    "matching",
    "trace",
    "trace_files",
]
