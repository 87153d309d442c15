"""Judge whether generation servers took over the KV cache of context servers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from serve_eval.evidence.path_proof.facts import CONTEXT, GENERATION, PathFacts
from serve_eval.evidence.path_proof.told import ClaimEvidence, leave_open, prove, refute
from serve_eval.schema import EngineCounts, ServerCounts

LEAST_SHARE = 0.5
"""Smallest share of the prompt tokens, or of the requests, that proves a transfer."""
UNUSED_FROM = 20
"""Answers per server of a role from which a server without any request is named. A router that
chooses at random leaves out a sound one with a probability below e^-20 times their number."""
HINT = (
    "To show it: with vLLM, let /metrics of the generation servers be read; with SGLang, start all"
    " servers with --enable-metrics; with trtllm-serve, set return_perf_metrics on all servers"
    " (launcher.perf_metrics: true does). Servers that nobody lists are named with launcher.servers"
)
_HITS = "local_cache_hit"


def judge_kv_transfer(facts: PathFacts) -> ClaimEvidence:
    """Return whether the KV cache moved. The strongest evidence decides.

    That is the number of moved tokens, then the requests of the context servers and the KV caches
    that they sent, then the servers and transfers that an orchestrator reports for each answer.
    """
    idle = _idle_context(facts)
    if (moved := count_moved(facts.servers)) is not None and moved[1]:
        return _by_tokens(*moved, idle)
    if idle is not None:
        return refute(idle, odd=True)
    if (sent := _count(facts, CONTEXT, "transfers")) is not None and facts.answered:
        return _by_transfers(sent, facts.answered)
    return _by_legs(facts)


def count_moved(servers: Sequence[ServerCounts]) -> tuple[int, int] | None:
    """Return the moved prompt tokens and all of them at generation servers; None if unknown.

    Tokens from a server's own prefix cache need no transfer and are left out of both.
    """
    found = [
        (one.counts.moved_tokens, _own_work(one.counts))
        for one in servers
        if one.counts is not None and one.role == GENERATION
    ]
    known = [(moved, of) for moved, of in found if moved is not None and of is not None]
    if not known:
        return None
    return sum(moved for moved, _ in known), sum(of for _, of in known)


def _own_work(counts: EngineCounts) -> int | None:
    """Return the prompt tokens that a server did not have in its own prefix cache."""
    if counts.prompt_tokens is None:
        return None
    return counts.prompt_tokens - (counts.prompt_tokens_by_source or {}).get(_HITS, 0)


def list_unused(facts: PathFacts) -> Iterator[str]:
    """Yield a warning for each server without a request while its siblings had some."""
    for role in (CONTEXT, GENERATION):
        ones = [one for one in facts.servers if one.role == role]
        counts = {
            one.server: one.counts.requests
            for one in ones
            if one.counts is not None and one.counts.requests is not None
        }
        total = sum(counts.values())
        if not total or total < UNUSED_FROM * len(ones):
            continue
        for one in ones:
            if counts.get(one.server) == 0:
                yield (
                    f"path: {one.server} ({one.url}) had 0 of the {total:,} requests to"
                    f" {role} servers"
                )


def _idle_context(facts: PathFacts) -> str | None:
    """Return evidence that the context servers had too few requests; None if they had enough."""
    requests = _count(facts, CONTEXT, "requests")
    if requests is not None and facts.answered and requests < LEAST_SHARE * facts.answered:
        return f"context servers had {requests:,} of {facts.answered:,} requests"
    return None


def _count(facts: PathFacts, role: str, what: Literal["requests", "transfers"]) -> int | None:
    """Return a count of the servers of a role, if all of them have it."""
    counts = [one.counts for one in facts.servers if one.role == role]
    told = [None if one is None else getattr(one, what) for one in counts]
    known = [one for one in told if one is not None]
    return sum(known) if counts and len(known) == len(counts) else None


def _by_transfers(sent: int, answered: int) -> ClaimEvidence:
    """Judge by the KV caches that context servers sent, as SGLang's count them."""
    said = f"context servers sent {sent:,} KV caches for {answered:,} answers"
    return prove(said) if sent >= LEAST_SHARE * answered else refute(said, odd=True)


def _by_tokens(moved: int, of: int, idle: str | None) -> ClaimEvidence:
    if moved < LEAST_SHARE * of:
        what = "no KV moved" if not moved else f"{moved:,} of {of:,} prompt tokens moved"
        first = "" if idle is None else f"{idle}; "
        return refute(
            f"{first}{what}: the generation servers prefilled {of - moved:,} of {of:,} prompt"
            " tokens themselves",
            odd=True,
        )
    return prove(f"{moved:,} of {of:,} prompt tokens of generation servers came by KV transfer")


def _by_legs(facts: PathFacts) -> ClaimEvidence:
    """Judge by the reports of an orchestrator on each answer."""
    legs = facts.legs
    if not legs.generation:
        said = "no server of the endpoint counts moved tokens, and no answer names its servers"
        requests = [_count(facts, role, "requests") for role in (CONTEXT, GENERATION)]
        if None not in requests:
            said = (
                f"context servers had {requests[0]:,} requests and generation servers"
                f" {requests[1]:,}, but none of them counts moved tokens"
            )
        return leave_open(said, HINT)
    of = f"{legs.generation:,} answers"
    if legs.moved >= LEAST_SHARE * legs.generation:
        return prove(f"a transfer of the KV cache was reported for {legs.moved:,} of {of}")
    if legs.moved:
        return refute(
            f"a transfer of the KV cache was reported for {legs.moved:,} of {of}", odd=True
        )
    if legs.context < LEAST_SHARE * legs.generation:
        return leave_open(
            f"reports name a context server for {legs.context:,} of {of}, and no transfer: an"
            " orchestrator that asks generation servers first leaves the name empty",
            HINT,
        )
    return leave_open(
        f"servers of both roles took part in {legs.context:,} of {of}, but no report has the time"
        " or the size of a transfer",
        HINT,
    )
