"""Bound the probability that a rule reports a healthy run.

The sum of the levels of the rules bounds the probability that any of them reports something
(Boole's inequality). Facts and counts have no level: they are always true.
"""

from __future__ import annotations

from serve_eval.workflows.diagnose import between, course
from serve_eval.workflows.diagnose.finding import ALPHA, BETWEEN_SHARE, SIDE_SHARE
from serve_eval.workflows.diagnose.slicing import ANSWER_LEVEL, PROMPT_LEVEL
from serve_eval.workflows.diagnose.unlike import UNLIKE

OF_A_TASK = {
    "truncated": ALPHA,
    "stop_string": ALPHA,
    "run_on": ALPHA,
    "extractors": ALPHA,
    "concurrency": ALPHA,
    "worker": course.WORKER,
    "slow_worker": course.SLOW_WORKER,
    "drift": course.DRIFT,
}
"""Levels of the rules that test the tasks of a run, which share them."""
OF_A_RUN = {
    "server_errors": ALPHA,
    "foreign_answers": ALPHA,
    "slice": PROMPT_LEVEL,
    "unlike": UNLIKE,
}
"""Levels of the rules that test a run as a whole."""
OF_A_COMPARISON = {**between.LEVELS, "slice": PROMPT_LEVEL + ANSWER_LEVEL}
"""Levels of the rules that test B against A, before BETWEEN_SHARE.

The runs of a comparison are neither searched for slices nor compared with a reference: they are
compared with each other."""
TESTS = OF_A_TASK.keys() | OF_A_RUN.keys() | OF_A_COMPARISON.keys()


def sum_levels() -> float:
    """Return the largest probability that any test reports a healthy run, of any number of tasks.

    The level of each rule is shared by the tasks.
    """
    return sum(OF_A_TASK.values()) + sum(OF_A_RUN.values())


def sum_comparison_levels() -> float:
    """Return the same for a comparison of two healthy runs."""
    return 2 * SIDE_SHARE * sum_levels() + BETWEEN_SHARE * sum(OF_A_COMPARISON.values())
