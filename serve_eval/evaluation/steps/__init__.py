"""Run the steps of a run, each a function of the run's session."""

__all__ = ["ask_tasks", "judge_answers", "open_tasks", "report_run", "run_answers", "use_endpoint"]
