"""Audit what servers make of prompts: a changed prompt looks like a changed model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from serve_eval.client.client import Client
from serve_eval.evaluation.probes.asking import AskedServer
from serve_eval.evaluation.prompt_audit.audit import audit
from serve_eval.evaluation.prompt_audit.reading import PromptSide

LEAST, SAME_SHARE = 10, 0.95
"""Prompts that both servers count, and the share of them that differ by the same number."""


def compare_counts(gaps: Sequence[int]) -> tuple[str, ...]:
    """Return a line if a server counts more or fewer prompt tokens than the reference's. Pure.

    `gaps` are the differences, by prompt. This needs no route that gives token ids, and no running
    reference.
    """
    if len(gaps) < LEAST or not any(gaps):
        return ()
    gap, same = Counter(gaps).most_common(1)[0]
    if not gap or same < SAME_SHARE * len(gaps):
        other = sum(one != 0 for one in gaps)
        told = f"other numbers of prompt tokens than the reference's in {other} of {len(gaps)}"
        return (f"prompts: the server counts {told} probes: another tokenizer",)
    amount = f"{abs(gap)} prompt token{'s' if abs(gap) > 1 else ''}"
    word = "more" if gap > 0 else "fewer"
    why = "the first token is doubled or missing" if abs(gap) == 1 else "another chat template"
    told = f"{amount} {word} than the reference's in {same} of {len(gaps)} probes: {why}"
    return (f"prompts: the server counts {told} on one side",)


async def audit_prompts(server: AskedServer, other: Client | PromptSide) -> tuple[str, ...]:
    """Return a line for each prompt that a server reads as other tokens than another side."""
    findings = await audit(server.client, other)
    return tuple(
        f"prompt {one.prompt}: {one.told}. {one.advice}" for one in findings if one.same is False
    )
