"""Audit what servers make of prompts: a changed prompt looks like a changed model."""

from __future__ import annotations

from serve_eval.client.client import Client
from serve_eval.evaluation.probes.asking import AskedServer
from serve_eval.evaluation.prompt_audit.audit import audit
from serve_eval.evaluation.prompt_audit.reading import PromptSide


async def audit_prompts(server: AskedServer, other: Client | PromptSide) -> tuple[str, ...]:
    """Return a line for each prompt that a server reads as other tokens than another side."""
    findings = await audit(server.client, other)
    return tuple(
        f"prompt {one.prompt}: {one.told}. {one.advice}" for one in findings if one.same is False
    )
