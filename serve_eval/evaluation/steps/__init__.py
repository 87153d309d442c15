"""Run the steps of a run, each a function of the run's session."""

__all__ = [
    "ask_tasks",
    "open_tasks",
    "report_run",
    "use_endpoint",
]
