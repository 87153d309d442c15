"""Types for the counts that the engines of servers report during a run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

KV_TRANSFER = "external_kv_transfer"
"""vLLM's name for prompt tokens whose KV cache came from another server."""


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of a server's engine, over all of its clients (None: it does not count this).

    `requests` are those that it finished, for whatever reason. `prompt_tokens_by_source` says by
    vLLM's names where the KV cache of prompts came from: local_compute, local_cache_hit,
    external_kv_transfer. The prefix cache was asked for `prefix_cache_queries` tokens and had
    `prefix_cache_hits` of them. `transfers` are the KV caches of prompts that it sent to another
    server. `transfer_faults` counts failures of a KV connector by their kind. Speculative decoding
    made `drafts`, which held `draft_tokens`, of which `accepted_tokens` became part of an answer;
    SGLang counts only how often it verified some, which are its drafts here.
    """

    requests: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    prompt_tokens_by_source: Mapping[str, int] | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None
    transfers: int | None = None
    transfer_faults: Mapping[str, int] | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def moved_tokens(self) -> int | None:
        """The prompt tokens whose KV cache came from another server."""
        sources = self.prompt_tokens_by_source
        return None if sources is None else sources.get(KV_TRANSFER, 0)

    @property
    def acceptance_length(self) -> float | None:
        """The mean tokens of a step with a draft: 1 + accepted tokens / drafts."""
        if not self.drafts or self.accepted_tokens is None:
            return None
        return 1.0 + self.accepted_tokens / self.drafts


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of one server between two readings, at the start and the end of a session.

    `role` is that of DeployedServer. `counts` is None if they are not known, and `lost` says why.
    """

    server: str
    url: str
    role: str | None = None
    counts: EngineCounts | None = None
    lost: str | None = None


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the engines during a session, or during all sessions of a run.

    Meanwhile we sent at most `sent` requests, and `answered` samples were answered, each with at
    least one of them. Companions, such as the runs of a comparison for second answers, sent at most
    `companions`.
    """

    servers: tuple[ServerCounts, ...]
    sent: int
    answered: int
    companions: int = 0
