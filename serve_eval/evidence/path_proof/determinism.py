"""Judge whether the same prompts got the same answers. Pure."""

from __future__ import annotations

from serve_eval.evidence.path_proof.facts import PathFacts
from serve_eval.evidence.path_proof.told import ClaimEvidence, leave_open, prove, refute

LEAST_PROMPTS = 16
"""Prompts that must have been compared before equal answers prove anything."""
HINT = "To show it: --repeats 2, with temperature 0 or a sampling seed"


def judge_determinism(facts: PathFacts) -> ClaimEvidence:
    """Return whether answers repeated. A single difference refutes it."""
    found = facts.repeated
    if found is None or (not found.differ and found.prompts < LEAST_PROMPTS):
        count = 0 if found is None else found.prompts
        return leave_open(f"{count} prompts were answered more than once", HINT)
    if found.differ:
        return refute(
            f"{found.differ:,} of {found.prompts:,} prompts got another answer when asked again,"
            f" for example {found.example}"
        )
    return prove(f"all {found.prompts:,} prompts that were asked again got the same answer")
