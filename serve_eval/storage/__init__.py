"""Read and write the files of a run. No other package touches them."""

__all__ = [
    "archive",
    "command_folder",
    "file_names",
    "journal",
    "json_files",
    "order_seed",
    "ownership",
    "run_folder",
    "server_logs",
    "sessions",
]
