"""The finding about a claim before it is known who expects it."""

from __future__ import annotations

from typing import NamedTuple

from serve_eval.schema import ProofState


class ClaimEvidence(NamedTuple):
    """The state of a claim and its evidence.

    `hint` says what would show more. `odd`: it looks wrong even if nobody expects it.
    """

    state: ProofState
    evidence: str
    hint: str = ""
    odd: bool = False


def prove(evidence: str) -> ClaimEvidence:
    return ClaimEvidence(ProofState.PROVEN, evidence)


def refute(evidence: str, *, odd: bool = False) -> ClaimEvidence:
    return ClaimEvidence(ProofState.REFUTED, evidence, odd=odd)


def leave_open(evidence: str, hint: str) -> ClaimEvidence:
    return ClaimEvidence(ProofState.UNKNOWN, evidence, hint)
