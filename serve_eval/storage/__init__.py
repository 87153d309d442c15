"""Read and write the files of a run. No other package touches them."""

__all__ = [
    "archive",
    "file_names",
    "folder_format",
    "journal",
    "latest",
    "order_seed",
    "ownership",
    "private_files",
    "run_folder",
    "server_logs",
    "sessions",
]
