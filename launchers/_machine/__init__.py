"""Inspect this machine: its GPUs and their users, its hosts, locks and killed processes."""

__all__ = [
    "hosts",
    "local_gpus",
    "lock_files",
    "memory_kills",
]
