"""The exit code of a run: one number for a script to act on."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.schema import Verdict, VerdictOutcome

PASS, FAIL, USAGE, UNDECIDED, INFRASTRUCTURE, NOTHING_SCORED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
_RANK = (FAIL, INFRASTRUCTURE, USAGE, UNDECIDED, NOTHING_SCORED, PASS)

_CODES = (
    (VerdictOutcome.FAIL, FAIL),
    (VerdictOutcome.ERROR, INFRASTRUCTURE),
    (VerdictOutcome.INCONCLUSIVE, UNDECIDED),
    (VerdictOutcome.NO_REFERENCE, UNDECIDED),
    (VerdictOutcome.UNSUPPORTED, UNDECIDED),
)


def exit_code(verdicts: Sequence[Verdict], *, strict: bool = False) -> int:
    """The first that holds: 1 any FAIL, 4 any ERROR, 3 any undecided, unsupported or without
    reference, 5 no verdict at all, 0.

    `strict` turns 3 into 1. Interruption (130), usage (2) and errors that stop a run have their
    codes elsewhere.
    """
    return worst([code_of(verdict.outcome) for verdict in verdicts], strict=strict)


def code_of(outcome: VerdictOutcome) -> int:
    """The code of a task alone."""
    return dict(_CODES).get(outcome, PASS)


def worst(codes: Sequence[int], *, strict: bool = False) -> int:
    """The code that stands for all of them; a FAIL first, since it alone says something of the
    model.
    """
    if not codes:
        return NOTHING_SCORED
    code = min(codes, key=_RANK.index)
    return FAIL if strict and code == UNDECIDED else code
