"""Choose the exit code of a run or of a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serve_eval.schema import TaskResult, Verdict, VerdictOutcome

PASS, FAIL, USAGE, UNDECIDED, INFRASTRUCTURE, NOTHING_SCORED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
_RANK = (FAIL, INFRASTRUCTURE, USAGE, UNDECIDED, NOTHING_SCORED, PASS)

_CODES = (
    (VerdictOutcome.FAIL, FAIL),
    (VerdictOutcome.ERROR, INFRASTRUCTURE),
    (VerdictOutcome.INCONCLUSIVE, UNDECIDED),
    (VerdictOutcome.NO_REFERENCE, UNDECIDED),
    (VerdictOutcome.UNSUPPORTED, UNDECIDED),
    (VerdictOutcome.NOT_ASKED, UNDECIDED),
)


def exit_code(verdicts: Sequence[Verdict], *, strict: bool = False) -> int:
    """Return the exit code for the verdicts of a run.

    The first that applies: 1 for any FAIL; 4 for any ERROR; 3 for any verdict that is undecided,
    unsupported or without a reference; 5 for no verdict at all; 0.

    `strict` turns 3 into 1. The codes for interruption (130), usage (2) and errors that stop a run
    are set elsewhere.
    """
    return worst([code_of(verdict.outcome) for verdict in verdicts], strict=strict)


def code_of(outcome: VerdictOutcome) -> int:
    """Return the exit code for the outcome of a single task."""
    return dict(_CODES).get(outcome, PASS)


def worst(codes: Sequence[int], *, strict: bool = False) -> int:
    """Return the exit code that takes precedence.

    FAIL comes first because it alone is a finding about the model.
    """
    if not codes:
        return NOTHING_SCORED
    code = min(codes, key=_RANK.index)
    return FAIL if strict and code == UNDECIDED else code


WITHHELD = "rehearsal: the stand-in answered, so nothing was judged"
"""The reason of a verdict that a rehearsal withholds."""


_ABOUT_A_MODEL = VerdictOutcome.PASS, VerdictOutcome.PASS_BY_IDENTITY, VerdictOutcome.FAIL


def withhold(verdict: Verdict) -> Verdict:
    """Return the verdict without PASS and FAIL, which say something about a model."""
    verdict = replace(verdict, other=None)
    if verdict.outcome not in _ABOUT_A_MODEL:
        return verdict
    reasons = (WITHHELD, *verdict.reasons)
    return replace(verdict, outcome=VerdictOutcome.INCONCLUSIVE, reasons=reasons)


def code_of_rehearsal(tasks: Sequence[tuple[TaskResult, Verdict]]) -> int:
    """Return 0 if every sample of every task was answered and scored, else the exit code."""
    if any(result.failed and not result.spared for result, _ in tasks):
        return INFRASTRUCTURE
    return went_through(exit_code([verdict for _, verdict in tasks]))


def went_through(code: int) -> int:
    """Return 0 for an exit code that is about the model, and any other code as it is."""
    return PASS if code in (PASS, FAIL, UNDECIDED) else code
