"""Import results of other tools as references: a reader per format, and the story around them."""

__all__ = [
    "document",
    "evalscope",
    "files",
    "found",
    "import_results",
    "inspect_logs",
    "lm_eval",
    "names",
    "nemo_evaluator",
    "prompts",
    "protocol",
    "recognise",
    "sgl_eval",
    "srt_slurm",
]
