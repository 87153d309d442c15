"""Start processes of serve-eval: bounded calls, their environment, descriptors and collector."""

__all__ = [
    "bounded_call",
    "descriptors",
    "environment",
    "forkserver",
    "import_path",
    "own_python",
    "rare_collections",
]
