"""Export a finished run in the file format of another tool."""

__all__ = [
    "biochatter",
    "export",
]
