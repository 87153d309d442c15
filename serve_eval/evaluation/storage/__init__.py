"""Know the files of a run: the only package that reads and writes them."""

__all__ = [
    "archive",
    "file_names",
    "folder_format",
    "journal",
    "order_seed",
    "ownership",
    "private_files",
    "run_folder",
    "server_logs",
    "sessions",
]
