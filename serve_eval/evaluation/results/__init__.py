"""Score every answer, sum up each task and its repeats, and detect a run that degrades."""

__all__ = [
    "accumulator",
    "degradation",
    "sample_table",
    "scoring",
    "task_result",
]
