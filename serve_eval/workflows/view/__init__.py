"""Show the runs of a folder: an index with trends, and any two runs side by side."""

__all__ = [
    "document", "found", "listing", "night_map", "overview", "served_folder", "server",
    "side_by_side",
]  # fmt: skip
