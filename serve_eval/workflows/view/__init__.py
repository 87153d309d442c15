"""Show the runs of a folder: an index with trends, and any two runs side by side."""

__all__ = ["index", "listing", "served_folder", "server", "side_by_side", "trends"]
