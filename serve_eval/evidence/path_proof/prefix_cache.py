"""Judge whether tokens of prompts came from a prefix cache. Pure."""

from __future__ import annotations

from serve_eval.client.questions.engine_metrics import add
from serve_eval.evidence.path_proof.facts import PathFacts
from serve_eval.evidence.path_proof.told import ClaimEvidence, leave_open, prove, refute

LEAST_SHARED = 1000
"""Characters that two prompts must share at their beginning before 0 hits mean anything: some 200
tokens, more than the largest usual block of 128."""
HINT = (
    "To show it: with vLLM, let /metrics be read, or start it with --enable-prompt-tokens-details;"
    " start SGLang with --enable-metrics or --enable-cache-report; trtllm-serve counts with"
    " return_perf_metrics"
)
SHARE = "To show it: ask prompts with the same beginning, such as worked examples, or --repeats 2"


def judge_prefix_cache(facts: PathFacts) -> ClaimEvidence:
    """Return whether tokens came from the prefix cache.

    Answers of one engine tell it for our requests alone. Behind an orchestrator they count moved
    tokens too, so that only the engines' own counters are evidence.
    """
    counted = [one for one in facts.of_role() if one.prefix_cache_hits is not None]
    total = add(counted)
    reported = None if facts.disaggregated else facts.cached
    if reported:
        return prove(f"answers report {reported:,} prompt tokens from the prefix cache")
    if counted and total.prefix_cache_queries == 0:
        return refute("no engine searched a prefix cache: it is off, or no prompt came")
    if reported is not None:
        return _judge_no_hits(
            facts, "answers report 0 prompt tokens from the prefix cache", asked=False
        )
    if not counted:
        return leave_open("no answer reports cached tokens, and no engine counts hits", HINT)
    of = "" if total.prefix_cache_queries is None else f" of {total.prefix_cache_queries:,}"
    if total.prefix_cache_hits:
        return prove(f"the prefix cache had {total.prefix_cache_hits:,}{of} prompt tokens")
    return _judge_no_hits(
        facts,
        f"prefix cache hits: 0{of} prompt tokens",
        asked=bool(total.prefix_cache_queries),
    )


def _judge_no_hits(facts: PathFacts, said: str, *, asked: bool) -> ClaimEvidence:
    """Return the finding for no hits. `asked`: the engine has a prefix cache and searched it."""
    shared = facts.find_shared()
    if shared < LEAST_SHARED:
        return leave_open(
            f"{said}, and no two prompts share more than {shared:,} characters at their beginning",
            SHARE,
        )
    return refute(f"{said}, though prompts share up to {shared:,} characters", odd=asked)
