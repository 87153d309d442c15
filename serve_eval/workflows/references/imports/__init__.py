"""Import results of other tools as references: a reader per format, and the story around them."""

__all__ = [
    "files",
    "import_results",
    "inspect_logs",
    "lm_eval",
    "recognise",
    "task_match",
]
