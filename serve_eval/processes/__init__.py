"""Start processes of serve-eval: bounded calls, their environment, their file descriptors."""

__all__ = [
    "bounded_call",
    "descriptors",
    "environment",
    "forkserver",
    "import_path",
    "own_python",
]
