"""Know the files of a run: the only package that reads and writes them."""

__all__ = [
    "archive",
    "asked_cases",
    "comparison_files",
    "executions",
    "file_names",
    "folder_format",
    "invariants_files",
    "journal",
    "judgements",
    "order_seed",
    "ownership",
    "private_files",
    "reply_proofs",
    "report_file",
    "run_folder",
    "scores",
    "server_logs",
    "sessions",
    "suite_files",
    "traces",
]
