"""The exit code of a run: one number for a script to act on."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.schema import Verdict, VerdictOutcome

PASS, FAIL, UNDECIDED, INFRASTRUCTURE, NOTHING_SCORED, INTERRUPTED = 0, 1, 3, 4, 5, 130

_CODES = (
    (VerdictOutcome.FAIL, FAIL),
    (VerdictOutcome.ERROR, INFRASTRUCTURE),
    (VerdictOutcome.INCONCLUSIVE, UNDECIDED),
    (VerdictOutcome.NO_REFERENCE, UNDECIDED),
)


def exit_code(verdicts: Sequence[Verdict], *, strict: bool = False) -> int:
    """The first that holds: 1 any FAIL, 4 any ERROR, 3 any undecided or without reference, 5 no verdict at all, 0.

    `strict` turns 3 into 1. Interruption (130), usage (2) and errors that stop a run have their codes elsewhere.
    """
    if not verdicts:
        return NOTHING_SCORED
    outcomes = {verdict.outcome for verdict in verdicts}
    for outcome, code in _CODES:
        if outcome in outcomes:
            return FAIL if strict and code == UNDECIDED else code
    return PASS
