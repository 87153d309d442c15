"""Look at this machine: its GPUs and who uses them, its hosts, its locks, and the processes it
killed.
"""

__all__ = ["hosts", "local_gpus", "lock_files", "memory_kills", "neighbours", "smi"]
