"""Start processes of serve-eval: bounded calls, their environment, descriptors and collector."""

__all__ = [
    "bounded_call",
    "child_process",
    "forkserver",
    "import_path",
    "resources",
]
