"""Bound the probability that a rule reports a healthy run.

The sum of the levels of the rules bounds the probability that any of them reports something
(Boole's inequality). Facts and counts have no level: they are always true.
"""

from __future__ import annotations

from serve_eval.evaluation.attribution import from_run, latency
from serve_eval.evaluation.results import degradation
from serve_eval.workflows.diagnose import between
from serve_eval.workflows.diagnose.finding import ALPHA
from serve_eval.workflows.diagnose.slicing import ANSWER_LEVEL, PROMPT_LEVEL

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
OF_A_RUN = {
    "server_errors": ALPHA,
    "foreign_answers": ALPHA,
    "slice": PROMPT_LEVEL + ANSWER_LEVEL,
}
"""Levels of the rules that test a run as a whole."""
OF_A_COMPARISON = {**between.LEVELS, "slice": OF_A_RUN["slice"]}
"""Levels of the rules that test a task of a comparison, in addition to those of its runs.

The runs of a comparison are not searched for slices: the comparison is."""


REPEATED = ("worker", "slow_worker", "drift")
"""Rules that repeat what the report says, at the levels of the report."""


def sum_own_levels(tasks: int = 1) -> float:
    """Return the same as `sum_levels` without the rules that repeat the report."""
    own = sum(level for rule, level in OF_A_TASK.items() if rule not in REPEATED)
    return tasks * own + sum(OF_A_RUN.values())


def sum_levels(tasks: int = 1) -> float:
    """Return the largest probability that any test reports a healthy run of `tasks` tasks."""
    return tasks * sum(OF_A_TASK.values()) + sum(OF_A_RUN.values())
