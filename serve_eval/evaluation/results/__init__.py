"""Score every answer and account for it: the sums of a task, its repeats, and a run that turns
worse.
"""

__all__ = [
    "accumulator",
    "degradation",
    "degradation_alarm",
    "repeats",
    "replay",
    "sample_table",
    "scoring",
    "stability",
    "task_result",
]
