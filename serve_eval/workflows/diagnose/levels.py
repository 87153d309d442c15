"""Bound the probability that a rule reports a healthy run.

The sum of the levels of the rules bounds the probability that any of them reports something
(Boole's inequality). Facts and counts have no level: they are always true.
"""

from __future__ import annotations

from serve_eval.evaluation.attribution import from_run, latency
from serve_eval.evaluation.results import degradation
from serve_eval.workflows.diagnose.finding import ALPHA

OF_A_TASK = {
    "truncated": ALPHA,
    "stop_string": ALPHA,
    "run_on": ALPHA,
    "extractors": ALPHA,
    "concurrency": ALPHA,
    "worker": from_run.ALPHA,
    "slow_worker": latency.ALPHA,
    "drift": sum(degradation.ALPHA.values()),
}
"""Levels of the rules that test each task of a run."""
OF_A_RUN = {"server_errors": ALPHA, "foreign_answers": ALPHA}
"""Levels of the rules that test a run as a whole."""


def sum_levels(tasks: int = 1) -> float:
    """Return the largest probability that any test reports a healthy run of `tasks` tasks."""
    return tasks * sum(OF_A_TASK.values()) + sum(OF_A_RUN.values())
