"""Make prepared tasks, and results and reports of tasks that nobody asked."""

from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Metric, Spec, TaskReport, TaskResult, Traffic


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


def make_traffic(attempts, **fields):
    """Return traffic of as many attempts, without times and tokens but those in `fields`."""
    usual = {
        **dict.fromkeys(("not_streamed", "prompt_tokens", "completion_tokens"), 0),
        **{name: {} for name in ("retries", "latency_s", "ttft_s", "tpot_s")},
    }
    return Traffic(attempts=attempts, **{**usual, **fields})


def make_task_report(result, verdict, **fields):
    """Return the report of a task with this result and verdict, without a reference."""
    usual = {
        "spec": Spec(name=result.task),
        "version": 1,
        "traffic": make_traffic(result.planned),
        "reference": None,
        **{name: {} for name in ("dataset", "fingerprint")},
    }
    return TaskReport(result=result, verdict=verdict, **{**usual, **fields})


def make_prepared(task, dataset, **fields):
    """Return a task that is ready to run on a data set, without a reference."""
    usual = {
        "spec": Spec(name=task.name),
        "fingerprint": {},
        "hypothesis": task.hypothesis,
        "notes": (),
        **dict.fromkeys(("reference", "why_no_reference", "protocol")),
    }
    return PreparedTask(task=task, dataset=dataset, **{**usual, **fields})
