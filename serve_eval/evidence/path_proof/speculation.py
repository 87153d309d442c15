"""Judge whether speculative decoding accepted drafts. Pure."""

from __future__ import annotations

from serve_eval.client.questions.engine_metrics import add
from serve_eval.evidence.path_proof.facts import CONTEXT, PathFacts
from serve_eval.evidence.path_proof.told import ClaimEvidence, leave_open, prove, refute
from serve_eval.schema import EngineCounts

FEW_TOKENS = 2
"""Tokens per answer up to which an answer needs no draft: the first token comes with the prompt."""
HINT = (
    "To show it: with vLLM, let /metrics be read; start SGLang with --enable-metrics; trtllm-serve"
    " reports steps in its answers, and counts drafts with return_perf_metrics"
)


def judge_speculation(facts: PathFacts) -> ClaimEvidence:
    """Return whether drafts became part of answers.

    Reports in answers come first, since they are about our requests alone.
    """
    if 0 < facts.tokens <= FEW_TOKENS * facts.answered:
        return leave_open(
            f"{facts.answered:,} answers with {facts.tokens:,} generated tokens need no drafts",
            "To show it: add a task with long answers, such as gsm8k",
        )
    if facts.acceptances:
        return _by_steps(facts)
    return _by_counters(facts)


def _by_steps(facts: PathFacts) -> ClaimEvidence:
    answers = sum(one.answers for one in facts.acceptances)
    most = max(one.all_steps for one in facts.acceptances)
    if most > 1.0:
        return prove(f"up to {most:.2f} tokens per step, as {answers:,} answers report")
    return refute(f"speculation accepted nothing: {answers:,} answers report one token per step")


def _by_counters(facts: PathFacts) -> ClaimEvidence:
    """Judge by the counters of all engines but those of context servers, if any others count."""
    others = [one.role for one in facts.servers if one.role != CONTEXT]
    counted = facts.of_role(*others) if others else facts.of_role()
    drafting = [one for one in counted if one.draft_tokens is not None]
    if not drafting and (found := _by_verifications(add(counted))) is not None:
        return found
    if not drafting:
        # vLLM has these counters exactly if it speculates.
        if counted and all(one.prompt_tokens_by_source is not None for one in counted):
            return refute("no engine has counters of drafts, which vLLM has if it speculates")
        return leave_open("no answer reports steps, and no engine counts drafts", HINT)
    total = add(drafting)
    drafted, accepted = total.draft_tokens or 0, total.accepted_tokens or 0
    if not drafted:
        return refute(f"no draft was made for {facts.tokens:,} generated tokens")
    if not accepted:
        return refute(f"speculation accepted nothing: 0 of {drafted:,} draft tokens", odd=True)
    return prove(f"{accepted:,} of {drafted:,} draft tokens were accepted")


def _by_verifications(total: EngineCounts) -> ClaimEvidence | None:
    """Judge by how often drafts were verified, which is all that SGLang counts; None if it is not.

    The first token of an answer comes with the prompt, and each verification gives one token more
    than it accepts. What was generated beyond that was accepted.
    """
    verified, tokens, requests = total.drafts, total.generated_tokens, total.requests
    if verified is None or tokens is None or requests is None:
        return None
    if not verified:
        return refute(f"no draft was verified for {tokens:,} generated tokens")
    accepted = tokens - requests - verified
    said = f"{verified:,} verifications of drafts for {tokens:,} generated tokens"
    if accepted <= 0:
        return refute(f"speculation accepted nothing: {said}", odd=True)
    return prove(f"{said}: at least {accepted:,} tokens were accepted")
