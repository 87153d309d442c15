"""Withhold the verdicts of a rehearsal, and say instead whether the plan went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serve_eval.schema import TaskResult, Verdict, VerdictOutcome
from serve_eval.verdicts.exit_code import FAIL, INFRASTRUCTURE, PASS, UNDECIDED, exit_code

WITHHELD = "rehearsal: the stand-in answered, so nothing was judged"
"""The reason of a verdict that a rehearsal withholds."""


def withhold(verdict: Verdict) -> Verdict:
    """Return the verdict without PASS and FAIL, which say something about a model."""
    verdict = replace(verdict, other=None)
    if verdict.outcome not in (VerdictOutcome.PASS, VerdictOutcome.FAIL):
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
