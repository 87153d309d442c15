"""Make results of tasks that nobody asked, from their number of samples and their value."""

from serve_eval.schema import Metric, TaskResult


def make_result(planned, value, **fields):
    """Return a result of which every planned sample was scored; `fields` replace what is usual."""
    usual = {
        "task": "t",
        "metric": Metric(),
        "scored": planned,
        "bounds": None if value is None else (value, value),
        **dict.fromkeys(("failed", "truncated", "stopped_in_reasoning"), 0),
        **{name: {} for name in ("outcomes", "failures", "parts", "breakdown")},
    }
    return TaskResult(planned=planned, value=value, **{**usual, **fields})
