"""Audit what servers make of prompts: a changed prompt looks like a changed model."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.client.client import Client
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence.prompt_audit.audit import audit, find_gap
from serve_eval.evidence.prompt_audit.reading import PromptSide


def compare_counts(gaps: Sequence[int]) -> tuple[str, ...]:
    """Return a line if a server counts more or fewer prompt tokens than the reference's. Pure.

    `gaps` are the differences, by prompt. This needs no running reference.
    """
    gap = find_gap(gaps)
    if gap is None or gap.tokens == 0:
        return ()
    return (
        f"prompts: the server counts {gap.amount} than the reference's in {gap.prompts} of"
        f" {gap.of} probes: {gap.cause}",
    )


async def audit_prompts(server: AskedServer, other: Client | PromptSide) -> tuple[str, ...]:
    """Return a line for each prompt that a server reads as other tokens than another side."""
    findings = await audit(server.client, other)
    return tuple(
        f"prompt {one.prompt}: {one.told}. {one.advice}" for one in findings if one.same is False
    )
