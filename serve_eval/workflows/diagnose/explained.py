"""Tell if findings explain nearly all lost answers of a task, so that nothing is left to place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from serve_eval.schema import Outcome
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import TaskEvidence
from serve_eval.workflows.diagnose.finding import OVERRULED, PLACE, Finding

EXPLAINED = 0.9
"""Share of the lost answers that other findings have to explain."""
WHOLE = {"other_model", "protocol", "data", "unsupported", OVERRULED}
"""Rules about everything that was asked: a fault of this kind may spoil any answer."""
SIGNS = {"unreadable", "looping", "unlike", "lengths", "signs", "first_token", PLACE}
"""Rules that describe damaged answers, and not what damaged them."""


def _is_cut(one: AskedSample) -> bool:
    return one.response is not None and one.response.truncated


def _is_thought(one: AskedSample) -> bool:
    stopped = one.response is not None and one.response.stopped_in_reasoning
    return stopped or one.outcome == Outcome.REASONING_ONLY


def _is_stopped(one: AskedSample) -> bool:
    return one.response is not None and one.response.stop_reason is not None


SHOWN_BY: Mapping[str, Callable[[AskedSample], bool]] = {
    "truncated": _is_cut,
    "cuts": _is_cut,
    "unclosed_reasoning": _is_thought,
    "stopped_in_reasoning": _is_thought,
    "misfiled": _is_thought,
    "stop_string": _is_stopped,
    "empty": lambda one: one.outcome == Outcome.EMPTY,
    "unreadable": lambda one: one.outcome == Outcome.UNPARSED,
}
"""The test by which an answer is one of those that a rule has named."""


def is_explained(
    task: TaskEvidence,
    fell: Collection[AskedSample],
    found: Iterable[Finding],
    *,
    by_signs: bool = False,
) -> bool:
    """Return True if `found` explains nearly all answers of a task that `fell`.

    These have a lower score than before; without a reference, they are wrong or missing. A missing
    answer is explained by its message. A finding about a sign that as many answers of the reference
    have explains none. Signs of damage explain answers only if `by_signs`. Answers of rules without
    a sign per answer are compared with all lost ones of the task, by number.
    """
    own = [one for one in found if one.task in (None, task.name) and not one.is_remark]
    own = [one for one in own if by_signs or one.rule not in SIGNS]
    if any(one.rule in WHOLE for one in own):
        return True
    if any((one.explains or 0) >= EXPLAINED * len(task.lost) for one in own):
        return True
    tests = [SHOWN_BY[one.rule] for one in own if one.rule in SHOWN_BY]
    covered = sum(one.failure is not None or any(test(one) for test in tests) for one in fell)
    return covered >= EXPLAINED * len(fell) > 0
