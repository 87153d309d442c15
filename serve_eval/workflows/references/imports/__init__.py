"""Import results of other tools as references: a reader per format, and the story around them."""

__all__ = [
    "evalscope",
    "files",
    "import_results",
    "inspect_logs",
    "lm_eval",
    "nemo_evaluator",
    "recognise",
    "sglang",
    "task_match",
]
