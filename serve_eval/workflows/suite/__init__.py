"""Many runs, one verdict: file -> runs (layers, matrix, match) -> execution (folder, shared_server)
-> judgement.
"""

__all__ = [
    "execution",
    "file",
    "folder",
    "judgement",
    "layers",
    "match",
    "matrix",
    "shared_server",
    "table",
]
