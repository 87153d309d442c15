"""Add up with which probability the rules that test accuse a healthy run.

No rule knows of the others, so that the sum of their levels bounds the probability that any of them
speaks (Boole's inequality). Facts and counts have no level: what they say is there.
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
"""The level of each rule that tests, for each task of a run."""
OF_A_RUN = {"server_errors": ALPHA}
"""The same of rules about a run as a whole."""


def sum_levels(tasks: int = 1) -> float:
    """Return the largest probability with which anything is said of a healthy run of so many tasks
    by a test.
    """
    return tasks * sum(OF_A_TASK.values()) + sum(OF_A_RUN.values())
