"""Fail if any answer differs from the reference's, for deployments that promise equal tokens.

Only `serve-eval compare` has the answers of both sides.
"""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import validity
from serve_eval.verdicts.rules import _classic

NEEDS_PAIRS = True
NEEDS_TEXTS = True


def check(**options: object) -> None:
    """Accept any options: none of this rule can be invalid."""


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None,
    *,
    max_missing: float = validity.MAX_MISSING,
) -> Verdict:
    """Return the verdict of one task, from pairs of 1 and, for the candidate, 1 or 0.

    0 is an answer that differs from the reference's, NaN a missing one, which never is a
    difference. FAIL: any answer differs. INCONCLUSIVE: none does, but too few were compared.
    """
    base = replace(_classic.frame(result, reference, hypothesis), rule="tokens", warnings=())
    if pairs is None:
        return replace(base, reasons=("no_answers: no prompt has an answer of both sides",))
    planned, compared = pairs.n, pairs.n - pairs.missing
    different = int((pairs.differences != 0.0).sum())
    if different:
        reason = f"different_answers: {different} of {compared} answers of B differ from A's"
        return replace(base, outcome=VerdictOutcome.FAIL, reasons=(reason,))
    if compared < MIN_UNITS:
        reason = f"too_few_answers: {compared} were compared; a verdict needs {MIN_UNITS}"
    elif (planned - compared) / planned > max_missing:
        reason = (
            f"too_many_missing: {planned - compared} of {planned} answers are missing on a side; at"
            f" most {max_missing:.0%} may be"
        )
    else:
        return replace(base, outcome=VerdictOutcome.PASS)
    return replace(base, reasons=(reason,))
